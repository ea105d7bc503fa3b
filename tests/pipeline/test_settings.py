"""The settings of the pipeline: defaults, the one spelling of each value, errors."""

import dataclasses
import os
from datetime import UTC, datetime, timedelta

import pytest

from sparq.pipeline.settings import QUERIES, Settings, flags
from tests.pipeline.settings_examples import refusal, settings_with


def test_defaults() -> None:
    """Only the data folder is required; everything else has a default, and each flag a text."""
    settings = Settings(data="data")
    topics = {one: f"clicks.{one}" for one in ("metrics", "rejected", "spam")}

    assert ("archive", "metrics", "spam_analysis") == settings.queries == QUERIES
    assert ({query: query for query in QUERIES}, topics) == (
        settings.channels,
        settings.result_topics,
    )
    assert ("clicks", "1000 milliseconds") == (settings.topic, settings.trigger)
    assert all(flag.help and flag.name == flag.key for flag in flags())
    assert settings == dataclasses.replace(settings)


def test_names_of_topics_and_channels() -> None:
    """Result topics follow the topic, so that pipelines do not collide, or are set.

    A query that does not run has no channel, and its channel's name cannot conflict.
    """
    settings = settings_with(topic="shop", spam_topic="abuse#ephemeral", metrics_channel="m")
    alone = settings_with(queries=("metrics",), archive_channel="metrics")

    expected = {"metrics": "shop.metrics", "rejected": "shop.rejected", "spam": "abuse#ephemeral"}
    assert expected == settings.result_topics
    assert ("m", {"metrics": "metrics"}) == (settings.channels["metrics"], alone.channels)
    assert {} == settings_with(publish=False).result_topics
    assert {} == settings_with(files="x", lookupd_http_addresses=()).result_topics
    assert 3 == len(settings_with(files="x").result_topics)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("~/clicks", os.path.expanduser("~/clicks")),  # a settings file has no shell
        ("./a:b/", os.path.abspath("a:b")),
        ("/var/clicks/", "/var/clicks"),
        ("file:/var/clicks", "file:/var/clicks"),
        ("s3a://bucket/", "s3a://bucket"),
        ("hdfs:///user/clicks", "hdfs:///user/clicks"),
    ],
)
def test_the_data_address_is_normalised(given: str, expected: str) -> None:
    """A URI is kept, a path becomes absolute, and a slash at the end is removed."""
    assert expected == settings_with(data=given).data


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        *(("1 second", 1000), ("2", 2000), ("0.5", 500), ("0", 0), (2, 2000), (0.25, 250)),
        *((" 500  Milliseconds ", 500), ("1 minute 30 seconds", 90_000), ("1.5s", 1500)),
        *(("1m30s", 90_000), ("1 min", 60_000), ("2 hours", 7_200_000), ("250ms", 250)),
    ],
)
def test_an_interval_is_seconds_or_has_units(given: object, expected_ms: int) -> None:
    """An interval is seconds, Spark's words, or the short units of NSQ."""
    assert f"{expected_ms} milliseconds" == settings_with(trigger=given).trigger


def test_places_of_files_and_times_have_one_spelling() -> None:
    """A path becomes absolute, a pattern and a URI stay; a time is ISO in UTC, also from -2h."""
    ago = datetime.fromisoformat(settings_with(since="-1d12h").since)

    for given in ("logs/*.gz", "./a:b"):
        assert os.path.abspath(given) == settings_with(files=given).files
    assert "s3a://bucket/{a,b}/*" == settings_with(files="s3a://bucket/{a,b}/*").files
    assert timedelta(hours=36) <= datetime.now(UTC) - ago < timedelta(hours=36, minutes=1)
    for given in ("2026-11-21T10:00:00Z", "2026-11-21T10:00", "2026-11-21T12:00:00+02:00"):
        assert "2026-11-21T10:00:00+00:00" == settings_with(since=given).since


def test_lists_are_texts_with_commas_or_sequences() -> None:
    """Duplicates are removed; hosts are in lower case and without `www.`."""
    addresses = ("a:4161, https://b/x", "[::1]:4161", "a:4161")
    settings = settings_with(lookupd_http_addresses=addresses, queries="metrics,archive")
    other = settings_with(site_hosts=["www.Example.com"], enrich="")

    assert ("a:4161", "https://b/x", "[::1]:4161") == settings.lookupd_http_addresses
    assert ("metrics", "archive") == settings.queries
    assert (("example.com",), ()) == (other.site_hosts, other.enrich)


def test_pairs_are_texts_pairs_or_a_mapping() -> None:
    """The last value of a key counts. Pairs of the source may be secret: `repr` has none."""
    expected = (("spark.a", "2"), ("spark.b", "x=y"))
    settings = settings_with(lookupd_http_addresses="a:1,b:1", source=("auth_secret=hush",))

    for given in (("spark.a=1", "spark.b=x=y", "spark.a=2"), expected, dict(expected)):
        assert expected == settings_with(spark=given).spark
    options = {"lookupd_http_addresses": "a:1,b:1", "auth_secret": "hush"}
    assert options == settings.cluster_options
    assert "hush" not in repr(settings)


def test_values_that_are_passed_on() -> None:
    """Every kind of master that Spark has; sizes as for Java; an empty address."""
    masters = ("", "local", "local[*]", "local[4,2]", "yarn", "local-cluster[2,1,1024]")
    for master in (*masters, "spark://a:7077,b:7077", "k8s://https://host:443"):
        assert master == settings_with(master=master).master
    assert "4G" == settings_with(driver_memory="4G").driver_memory
    assert "" == settings_with(metrics_address="").metrics_address


NAME = " is not a valid name: use 1-64 characters from [.a-zA-Z0-9_-]"
SIZE = " is not a size: write a whole number with a unit, such as 512m"
MASTER = " is not a master: use local[*], spark://host:7077, yarn or k8s://https://host:443"
INTERVAL = ": write 5 (seconds), 500 milliseconds or 1 minute"
MMDB = ": this is no MMDB file, such as GeoLite2-Country.mmdb ("
TAKEN = "is a field of every click: choose another name, or use [click]"
MISTAKES = [
    *(("data", one, "--data is missing: name the folder for output and") for one in ("", "/")),
    ("data", "s3a:b", ": write s3a://host/path, or ./s3a:b for a local folder"),
    ("data", "day[1]", ": readers would take [ for a pattern: rename the folder"),
    ("data", "a\nb", ': readers would take "\\n" for a pattern'),
    *(("topic", one, NAME) for one in ("a b", "", "x#ephemeral")),
    ("topic", 5, ": invalid string value type int"),
    ("topic", "x" * 60, f"--metrics-topic={'x' * 60}.metrics{NAME}"),
    *(("archive_channel", "x#ephemeral", NAME), ("spam_topic", "a b", NAME)),
    ("metrics_topic", "clicks", " is the topic of the clicks"),
    ("metrics_channel", "archive", "spam-analysis-channel: give each query a channel of its own"),
    ("queries", (), "--queries is empty: name one or more of archive, metrics, spam_analysis"),
    ("queries", "metrik", " is unknown: did you mean metrics?"),
    ("queries", 3, "--queries: write a list of texts"),
    *(("since", one, ": write 2026-11-21T10:00:00Z, or -2h") for one in ("-2x", "monday")),
    ("publish", "yes", ": write true or false"),
    ("max_offsets_per_trigger", 0, " is too small: use 1 or more"),
    ("max_offsets_per_trigger", 1.5, ": invalid int value type float"),
    ("shuffle_partitions", 20_000, " is too large: use 10000 or less"),
    ("shuffle_partitions", True, ": invalid int value type bool"),
    *(("trigger", one, INTERVAL) for one in ("", "soon", "5 parsecs", "1 second later", "-1")),
    *(("trigger", one, INTERVAL) for one in ("1e3", "1 s s", True)),
    *(("driver_memory", one, SIZE) for one in ("512", "1.5g", "0", "much")),
    *(("master", one, MASTER) for one in ("locale", "host:7077", "mesos")),
    ("run_dir", "s3a://b/run", ": write a path of this machine"),
    *(("country_file", "/no/file", MMDB), ("network_file", __file__, MMDB)),
    ("site_hosts", "http://a", ": write a host such as www.example.com"),
    ("enrich", "robots", " is unknown: did you mean robot?"),
    *(
        ("lookupd_http_addresses", one, ": not an address")
        for one in ("4161", "a:70000", "ftp://a")
    ),
    ("metrics_address", "4180", " is not an address: write 127.0.0.1:4180"),
    ("format", "combind", " is unknown: did you mean combined?"),
    *(("log_format", one, " has no time: write $time_local,") for one in ("$status", "%h %d")),
    ("log_format", "$msec $a$b", " has no character between $a and $b"),
    ("fields", "c-ip", " has no date and time: write the #Fields line"),
    ("click", "pth=a.b", "--click: pth is no field of a click: did you mean path?"),
    ("click", "path=", "--click: path has no path: write keys with points between"),
    ("columns", "Order Id=a: int", '--columns: "Order Id" is no name of a column: use a-z'),
    *(("columns", f"{one}=a: int", TAKEN) for one in ("reason", "query", "robot", "id", "date")),
    ("columns", "a=b: blob", '--columns: a = "b: blob" is not "path: type" with one of the types'),
    ("trusted_proxies", "10/99", " is not a network: write 10.0.0.0/8"),
    *(("spark", "spark.a", "--spark: write KEY=VALUE"), ("source", "hush", "write KEY=VALUE")),
    ("source", "topic=x", "--source: topic has a flag of its own: see --help"),
    ("source", "auth_secrt=hush", "--source: unknown option auth_secrt: did you mean auth_secret"),
    ("source", "nsqdTimeoutMs=soon", "--source: option nsqdTimeoutMs: expected a whole"),
    ("source", "auth_secret=hu\0sh", "--source: option auth_secret contains non-printab"),
]


@pytest.mark.parametrize(("field", "given", "end"), MISTAKES)
def test_a_mistake_is_one_sentence_with_the_flag(field: str, given: object, end: str) -> None:
    """The sentence names the flag, its value unless it may be a secret, and what to write."""
    found = refusal(**{field: given})
    name = {flag.field: flag.name for flag in flags()}[field]

    assert end in found
    assert found.startswith(f"--{name}=" if end[0] in " :" else "--")
    assert "hush" not in found
