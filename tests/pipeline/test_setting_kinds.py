"""The types of settings: the normal form of each value, and the error about a wrong one."""

import os

import pytest

from tests.pipeline.settings_examples import refusal, settings_with


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
def test_the_data_address_is_normalised(given: str, expected: str, is_local: bool) -> None:
    """A URI is kept, a path becomes absolute, and a slash at the end is removed."""
    settings = settings_with(data=given)

    assert (expected, is_local) == (settings.data, settings.is_local)


def test_a_tilde_is_replaced_by_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is replaced: a settings file has no shell that would do it."""
    monkeypatch.setenv("HOME", "/somebody")

    assert "/somebody/clicks" == settings_with(data="~/clicks").data


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "--data is missing: name the folder for output and checkpoints"),
        (" ", '--data=" " is empty: name a folder'),
        (
            "s3a:b",
            "--data=s3a:b is not a URI: write s3a://host/path, or ./s3a:b for a local folder",
        ),
        (
            "1x://b",
            "--data=1x://b has no valid scheme: begin it with a letter, as in s3a://bucket/fo",
        ),
        ("://b", "--data=://b has no valid scheme: begin it with a letter"),
        ("file://host/x", "--data=file://host/x names a host: write file:///host/x"),
        ("hdfs:///", "--data=hdfs:/// is the root of a file system: name a folder in it"),
        ("/", "--data=/ is the root of a file system"),
        ("day[1]", "--data=day[1] has [, which Spark would read as part of a pattern: rename"),
        ("a\nb", '--data="a\\nb" has "\\n", which Spark would read as part of a pattern'),
    ],
)
def test_a_wrong_data_address_is_refused(given: str, sentence: str) -> None:
    """The error says what to write instead."""
    assert refusal(data=given).startswith(sentence)


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
def test_valid_triggers_are_parsed(given: str, expected: str) -> None:
    """An interval is seconds, Spark's words, or the short units of Spark's options."""
    assert expected == settings_with(trigger=given).trigger


@pytest.mark.parametrize("given", ["", "soon", "5 parsecs", "1 second later", "-1", "1e3", "1 s s"])
def test_a_wrong_trigger_is_refused(given: str) -> None:
    """A wrong interval is refused before Spark starts, which takes ten seconds."""
    assert "is not a time: write 5 (seconds), 500 milliseconds or 1 minute" in refusal(
        trigger=given
    )


@pytest.mark.parametrize(
    ("given", "expected"), [("512m", "512m"), ("4G", "4g"), ("1024 MiB", "1024m")]
)
def test_valid_heap_sizes_are_accepted(given: str, expected: str) -> None:
    """Sizes are written as for Spark and Java."""
    settings = settings_with(driver_memory=given, executor_memory=given)

    assert (expected, expected) == (settings.driver_memory, settings.executor_memory)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("512", "is not a size: write a whole number with a unit, such as 512m or 4g"),
        ("1.5g", "is not a size: write a whole number with a unit"),
        ("much", "is not a size"),
        ("511m", "is too small: use 512m or more"),
        ("0", "is not a size"),
    ],
)
def test_a_wrong_heap_size_is_refused(given: str, reason: str) -> None:
    """A size needs a unit (Java would read bytes) and 512m at least (Spark needs 450 MiB)."""
    assert f"--driver-memory={given} {reason}" in refusal(driver_memory=given)


@pytest.mark.parametrize(
    "given",
    [
        *("local", "local[*]", "local[4]", "local[4,2]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://host:7077", "spark://a:7077,b:7077", "k8s://https://host:443"),
    ],
)
def test_every_kind_of_master_is_accepted(given: str) -> None:
    """Every kind of master that Spark has is accepted."""
    assert given == settings_with(master=given).master


@pytest.mark.parametrize(
    "given", ["locale", "local[0]", "spark://host", "yarn-client", "host:7077"]
)
def test_an_unknown_master_is_refused(given: str) -> None:
    """An unknown master is an error: Spark itself would end with a stack trace."""
    assert refusal(master=given).startswith(f"--master={given} is not a master: ")


def test_nsqlookupd_addresses_are_parsed() -> None:
    """Addresses are host:port or URLs, in a list or with commas; duplicates are removed."""
    settings = settings_with(lookupd_http_addresses=("a:4161,https://b/x", "[::1]:4161", "a:4161"))

    assert ("a:4161", "https://b/x", "[::1]:4161") == settings.lookupd_http_addresses


@pytest.mark.parametrize("given", ["4161", "host", "host:port", "host:70000", "ftp://host"])
def test_a_wrong_nsqlookupd_address_is_refused(given: str) -> None:
    """The error shows a valid address."""
    sentence = refusal(lookupd_http_addresses=(given,))

    assert (
        f"--lookupd-http-address={given} is not an address: write host:port, such as 127.0.0.1:4161"
        == sentence
    )


def test_the_metrics_address_may_be_empty() -> None:
    """The address may be empty; a wrong one is refused."""
    assert "" == settings_with(metrics_address="").metrics_address
    assert "0.0.0.0:80" == settings_with(metrics_address="0.0.0.0:80").metrics_address
    assert "--metrics-address=4180 is not an address: write host:port" in refusal(
        metrics_address="4180"
    )


def test_spark_options_are_parsed() -> None:
    """Spark options are texts, pairs or a mapping; the last value of a key counts."""
    expected = (("spark.a", "2"), ("spark.b", "x=y"))

    assert expected == settings_with(spark=("spark.a=1", "spark.b=x=y", "spark.a=2")).spark
    assert expected == settings_with(spark=expected).spark
    assert expected == settings_with(spark=dict(expected)).spark


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("spark.a", "--spark: write KEY=VALUE"),
        ("sparq.a=1", "--spark: sparq.a is not a Spark option: these begin with spark."),
        ("spark.=1", "--spark: spark. is not a Spark option"),
        ("spark.master=yarn", "--spark: spark.master has its own flag: write --master"),
        ("spark.driver.memory=1g", "--spark: spark.driver.memory has its own flag: write --"),
        (
            "spark.sql.streaming.stateStore.providerClass=x",
            "--spark: spark.sql.streaming.stateStore.providerClass must be org.apache.spark.sql.",
        ),
        (
            "spark.sql.session.timeZone=Europe/Berlin",
            "--spark: spark.sql.session.timeZone must be UTC: minutes and the hours",
        ),
        ("spark.remote=sc://host", "--spark: spark.remote is not allowed: the pipeline cannot"),
        (
            "spark.submit.deployMode=cluster",
            "--spark: spark.submit.deployMode is not allowed: use spark-su",
        ),
    ],
)
def test_a_refused_spark_option_names_the_alternative(given: str, sentence: str) -> None:
    """The error names the option, and what to write instead or the reason."""
    assert refusal(spark=(given,)).startswith(sentence)


def test_a_required_spark_option_may_be_given() -> None:
    """The required value itself is accepted."""
    assert settings_with(spark=("spark.sql.session.timeZone=UTC",)).spark


def test_source_options_are_passed_by_name() -> None:
    """Timeouts, TLS and AUTH are set by the source's own option names."""
    given = (("nsqdTimeoutMs", "60000"), ("auth_secret", "hush"))

    assert given == settings_with(source=given).source


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("topic=x", "--source: topic is set by the pipeline: write --topic"),
        ("auth_secrt=hush", "--source: unknown option auth_secrt: did you mean auth_secret?"),
        ("nsqdTimeoutMs=soon", "--source: option nsqdTimeoutMs: expected a whole number"),
        ("tls_cert=/no/such.pem", "--source: option tls_cert '/no/such.pem': No such file or di"),
        ("auth_secret=hu\0sh", "--source: option auth_secret contains non-printable characters"),
        ("hush", "--source: write KEY=VALUE"),
    ],
)
def test_a_wrong_source_option_is_refused_before_spark_starts(given: str, sentence: str) -> None:
    """The source's own checks run before Spark starts; a secret is not in the error."""
    found = refusal(source=(given,))

    assert found.startswith(sentence)
    assert "hush" not in found
