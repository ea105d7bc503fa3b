"""The settings of the pipeline: their defaults, one spelling for each value, and mistakes."""

import dataclasses
import os

import pytest

from sparq.pipeline.settings import QUERIES, Settings, SettingsError, flags

LOOKUPD = ("127.0.0.1:4161",)


def made(**values):
    return Settings(**{"data": "data", "lookupd_http_addresses": LOOKUPD, **values})


def refused(**values):
    """The sentence about a mistake."""
    with pytest.raises(SettingsError) as raised:
        made(**values)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


def test_what_follows_from_nothing() -> None:
    """Only the data's folder is needed to make settings; the rest has defaults."""
    settings = Settings(data="data")

    assert ("archive", "metrics", "spam_analysis") == settings.queries == QUERIES
    assert {query: query for query in QUERIES} == settings.channels
    assert {
        "metrics": "clicks.metrics",
        "rejected": "clicks.rejected",
        "spam": "clicks.spam",
    } == settings.result_topics
    assert ("clicks", "1 second", "parquet") == (
        settings.topic,
        settings.trigger,
        settings.archive_format,
    )
    assert ("", "", 0) == (settings.master, settings.driver_memory, settings.shuffle_partitions)
    assert 60_000 == settings.archive_max_delay_ms
    assert 128 << 20 == settings.archive_file_bytes


def test_the_defaults_are_right_in_themselves() -> None:
    """Settings made of settings are the same: each value is in its last spelling already."""
    settings = made(master="local[2]", driver_memory="2G", spark=(("spark.a", "b"),))

    assert settings == dataclasses.replace(settings)


def test_every_setting_is_documented_with_its_flag() -> None:
    """The docstring names each field, and the help says something of each."""
    for flag in flags():
        assert f"        {flag.field}: " in (Settings.__doc__ or ""), flag.field
        assert flag.help
        assert flag.name == flag.key


@pytest.mark.parametrize(
    ("given", "expected", "is_local"),
    [
        ("data", os.path.abspath("data"), True),
        ("./a:b/", os.path.abspath("a:b"), True),
        ("/var/clicks/", "/var/clicks", True),
        ("file:///var/clicks", "file:///var/clicks", True),
        ("file:/var/clicks", "file:/var/clicks", True),
        ("s3a://bucket/", "s3a://bucket", False),
        ("hdfs:///user/clicks", "hdfs:///user/clicks", False),
        ("hdfs://name:8020/clicks", "hdfs://name:8020/clicks", False),
    ],
)
def test_the_address_of_the_data(given: str, expected: str, is_local: bool) -> None:
    """A URI stays one, a path becomes absolute, and no slash is left at the end."""
    settings = made(data=given)

    assert (expected, is_local) == (settings.data, settings.is_local)


def test_a_path_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of settings has no shell that would know what ~ is."""
    monkeypatch.setenv("HOME", "/somebody")

    assert "/somebody/clicks" == made(data="~/clicks").data


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "--data is missing: name the folder of output and checkpoints"),
        (" ", '--data=" " is empty: name a folder'),
        ("s3a:b", "--data=s3a:b is no URI: write s3a:///path or s3a://host/path, or ./s3a:b"),
        ("1x://b", "--data=1x://b has no scheme: write one of letters before the colon, as in s3a"),
        ("://b", "--data=://b has no scheme: write one of letters"),
        ("file://host/x", "--data=file://host/x names a host: write file:///host/x"),
        ("hdfs:///", "--data=hdfs:/// is a whole file system: name a folder in it"),
        ("/", "--data=/ is a whole file system"),
        ("day[1]", "--data=day[1] has [, which Spark reads as part of a pattern: rename it"),
        ("a\nb", '--data="a\\nb" has "\\n", which Spark reads as part of a pattern'),
    ],
)
def test_what_is_no_address_of_data(given: str, sentence: str) -> None:
    """Each is told what to write instead."""
    assert refused(data=given).startswith(sentence)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1 second", "1 second"),
        ("2", "2 seconds"),
        ("0.5", "500 milliseconds"),
        ("0", "0 seconds"),
        (" 500  Milliseconds ", "500 milliseconds"),
        ("interval 1 minute 30 seconds", "90 seconds"),
        ("1.5s", "1500 milliseconds"),
        ("1m", "60 seconds"),
        ("2 hours", "7200 seconds"),
        ("250ms", "250 milliseconds"),
    ],
)
def test_a_trigger(given: str, expected: str) -> None:
    """Seconds, Spark's words for intervals, and the short units of its options."""
    assert expected == made(trigger=given).trigger


@pytest.mark.parametrize("given", ["", "soon", "5 parsecs", "1 second later", "-1", "1e3", "1 s s"])
def test_what_is_no_trigger(given: str) -> None:
    """Spark would refuse it later, and after a start of ten seconds."""
    assert "is no time: write seconds, or 500 milliseconds" in refused(trigger=given)


@pytest.mark.parametrize(
    ("given", "expected"), [("512m", "512m"), ("4G", "4g"), ("1024 MiB", "1024m")]
)
def test_a_heap(given: str, expected: str) -> None:
    """Sizes as Spark and Java write them."""
    settings = made(driver_memory=given, executor_memory=given)

    assert (expected, expected) == (settings.driver_memory, settings.executor_memory)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("512", "is no size: write a whole number with its unit, as in 512m or 4g"),
        ("1.5g", "is no size: write a whole number with its unit"),
        ("much", "is no size"),
        ("511m", "is too small: use 512m or more"),
        ("0", "is no size"),
    ],
)
def test_what_is_no_heap(given: str, reason: str) -> None:
    """Java takes a number without a unit for bytes, and Spark needs 450 MiB at least."""
    assert f"--driver-memory={given} {reason}" in refused(driver_memory=given)


def test_files_of_the_archive_that_are_never_merged() -> None:
    """0 is a size, where it means none."""
    assert 0 == made(archive_file_size="0").archive_file_bytes
    assert 1 << 30 == made(archive_file_size="1g").archive_file_bytes


@pytest.mark.parametrize(
    "given",
    [
        *("local", "local[*]", "local[4]", "local[4,2]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://host:7077", "spark://a:7077,b:7077", "k8s://https://host:443"),
    ],
)
def test_a_master(given: str) -> None:
    """Every kind of master that Spark has."""
    assert given == made(master=given).master


@pytest.mark.parametrize(
    "given", ["locale", "local[0]", "spark://host", "yarn-client", "host:7077"]
)
def test_what_is_no_master(given: str) -> None:
    """Spark would end with a stack trace."""
    assert refused(master=given).startswith(f"--master={given} is no master: ")


def test_addresses_of_nsqlookupds() -> None:
    """Several, each once, as host:port or URL, in a list or in one text with commas."""
    settings = made(lookupd_http_addresses=("a:4161,https://b/x", "[::1]:4161", "a:4161"))

    assert ("a:4161", "https://b/x", "[::1]:4161") == settings.lookupd_http_addresses


@pytest.mark.parametrize("given", ["4161", "host", "host:port", "host:70000", "ftp://host"])
def test_what_is_no_address(given: str) -> None:
    """The sentence has one that is."""
    sentence = refused(lookupd_http_addresses=(given,))

    assert (
        f"--lookupd-http-address={given} is no address: write host:port, as in 127.0.0.1:4161"
        == sentence
    )


def test_no_figures() -> None:
    """An empty address is none; what cannot be listened on is refused."""
    assert "" == made(metrics_address="").metrics_address
    assert "0.0.0.0:80" == made(metrics_address="0.0.0.0:80").metrics_address
    assert "--metrics-address=4180 is no address: write host:port" in refused(
        metrics_address="4180"
    )


def test_names_follow_the_topic() -> None:
    """Two pipelines of two topics do not mix their results; each name can be set."""
    settings = made(topic="shop", spam_topic="abuse#ephemeral", metrics_channel="m")

    assert {
        "metrics": "shop.metrics",
        "rejected": "shop.rejected",
        "spam": "abuse#ephemeral",
    } == settings.result_topics
    assert "m" == settings.channels["metrics"]
    assert {} == made(publish=False).result_topics


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"topic": "a b"}, '--topic="a b" is no name of a topic: use 1-64 characters'),
        ({"topic": ""}, '--topic="" is no name of a topic'),
        ({"topic": "x#ephemeral"}, "--topic=x#ephemeral is ephemeral"),
        ({"archive_channel": "x#ephemeral"}, "--archive-channel=x#ephemeral is ephemeral"),
        ({"topic": "x" * 60}, f"--metrics-topic={'x' * 60}.metrics is no name of a topic"),
        ({"metrics_topic": "clicks"}, "--metrics-topic=clicks is the topic of the clicks"),
        (
            {"spam_analysis_channel": "metrics"},
            "--spam-analysis-channel=metrics is the channel of metrics as well",
        ),
        ({"queries": ()}, "--queries is empty: name one or more of archive, metrics, spam_ana"),
        ({"queries": ("metrik",)}, "--queries=metrik is unknown: did you mean metrics?"),
        ({"archive_format": "orc"}, "--archive-format=orc is unknown: use parquet or delta"),
        ({"max_offsets_per_trigger": 0}, "--max-offsets-per-trigger=0 is too small: use 1 or"),
        ({"shuffle_partitions": 20_000}, "--shuffle-partitions=20000 is too large: use 10000"),
        ({"archive_min_offsets": 300_000}, "--archive-min-offsets=300000 is above --archive-max"),
        ({"run_dir": "s3a://b/run"}, "--run-dir=s3a://b/run is a URI: name a folder on this"),
        ({"topic": 5}, "--topic=5 has the wrong type: write a text"),
        ({"publish": "yes"}, "--publish=yes has the wrong type: write true or false"),
        ({"shuffle_partitions": True}, "--shuffle-partitions=true has the wrong type: write a wh"),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, object], sentence: str) -> None:
    """It begins with the flag, as the user would write it."""
    assert refused(**values).startswith(sentence)


def test_queries_that_do_not_run_have_no_channel() -> None:
    """So the names of their channels cannot be in the way."""
    settings = made(queries=("metrics",), archive_channel="metrics")

    assert {"metrics": "metrics"} == settings.channels


def test_options_of_spark() -> None:
    """As texts or pairs or a mapping; of a key that is given twice the last counts."""
    expected = (("spark.a", "2"), ("spark.b", "x=y"))

    assert expected == made(spark=("spark.a=1", "spark.b=x=y", "spark.a=2")).spark
    assert expected == made(spark=expected).spark
    assert expected == made(spark=dict(expected)).spark


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("spark.a", "--spark: write KEY=VALUE"),
        ("sparq.a=1", "--spark: sparq.a is no option of Spark: it begins with spark."),
        ("spark.=1", "--spark: spark. is no option of Spark"),
        ("spark.master=yarn", "--spark: spark.master has a flag of its own: write --master"),
        ("spark.driver.memory=1g", "--spark: spark.driver.memory has a flag of its own: write --"),
        (
            "spark.sql.streaming.stateStore.providerClass=x",
            "--spark: spark.sql.streaming.stateStore.providerClass must be org.apache.spark.sql.",
        ),
        (
            "spark.sql.session.timeZone=Europe/Berlin",
            "--spark: spark.sql.session.timeZone must be UTC: minutes, and the hours",
        ),
        ("spark.remote=sc://host", "--spark: spark.remote is not for the pipeline: "),
        ("spark.submit.deployMode=cluster", "--spark: spark.submit.deployMode is not for the"),
    ],
)
def test_an_option_of_spark_that_cannot_be(given: str, sentence: str) -> None:
    """Refused by its name, with what to write instead or why."""
    assert refused(spark=(given,)).startswith(sentence)


def test_what_must_be_so_may_be_said() -> None:
    """It changes nothing."""
    assert made(spark=("spark.sql.session.timeZone=UTC",)).spark


def test_options_of_the_source() -> None:
    """TLS, AUTH and patience, by the names of the source."""
    given = (("nsqdTimeoutMs", "60000"), ("auth_secret", "hush"))

    assert given == made(source=given).source


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("topic=x", "--source: topic is set by the pipeline: write --topic"),
        ("maxTriggerDelay=1s", "--source: maxTriggerDelay is set by the pipeline: write --archi"),
        ("auth_secrt=hush", "--source: there is no option auth_secrt: did you mean auth_secret?"),
        ("nsqdTimeoutMs=soon", "--source: option nsqdTimeoutMs: expected a whole number"),
        ("tls_cert=/no/such.pem", "--source: option tls_cert '/no/such.pem': No such file or di"),
        ("auth_secret=hu\0sh", "--source: option auth_secret has characters that are not printab"),
        ("hush", "--source: write KEY=VALUE"),
    ],
)
def test_an_option_of_the_source_that_cannot_be(given: str, sentence: str) -> None:
    """The source's own checks, before Spark is started; a secret is not repeated."""
    found = refused(source=(given,))

    assert found.startswith(sentence)
    assert "hush" not in found


def test_a_secret_is_not_shown() -> None:
    """Settings are logged."""
    assert "hush" not in repr(made(source=("auth_secret=hush",)))
