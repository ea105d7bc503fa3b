"""The settings of the pipeline: defaults, the one spelling of each value, errors."""

import dataclasses
import os
from datetime import UTC, datetime, timedelta

import pytest

from sparq.pipeline.settings import QUERIES, Settings, cluster_options, flags
from tests.pipeline.settings_examples import refusal, settings_with


def test_defaults() -> None:
    """Only the data folder is required; everything else has a default, and each flag a text."""
    settings = Settings(data="data")

    assert ("archive", "metrics", "spam_analysis") == settings.queries == QUERIES
    assert {query: query for query in QUERIES} == settings.channels
    assert {
        "metrics": "clicks.metrics",
        "rejected": "clicks.rejected",
        "spam": "clicks.spam",
    } == settings.result_topics
    assert ("clicks", "1000 milliseconds") == (settings.topic, settings.trigger)
    assert ("", "", 0) == (settings.master, settings.driver_memory, settings.shuffle_partitions)
    assert all(flag.help and flag.name == flag.key for flag in flags())


def test_settings_made_from_other_settings_are_equal() -> None:
    """Settings made from the values of other settings are equal to them."""
    settings = settings_with(master="local[2]", trigger="0.5", spark=(("spark.a", "b"),))

    assert settings == dataclasses.replace(settings)


def test_names_of_result_topics_follow_the_topic() -> None:
    """Names of result topics follow the topic, so that pipelines do not collide, or are set."""
    settings = settings_with(topic="shop", spam_topic="abuse#ephemeral", metrics_channel="m")

    assert {
        "metrics": "shop.metrics",
        "rejected": "shop.rejected",
        "spam": "abuse#ephemeral",
    } == settings.result_topics
    assert "m" == settings.channels["metrics"]
    assert {} == settings_with(publish=False).result_topics
    assert {} == settings_with(files="x", lookupd_http_addresses=()).result_topics
    assert 3 == len(settings_with(files="x").result_topics)


def test_queries_that_do_not_run_have_no_channel() -> None:
    """A query that does not run has no channel, and its channel's name cannot conflict."""
    settings = settings_with(queries=("metrics",), archive_channel="metrics")

    assert {"metrics": "metrics"} == settings.channels


@pytest.mark.parametrize(
    ("given", "expected", "is_local"),
    [
        ("data", os.path.abspath("data"), True),
        ("~/clicks", os.path.expanduser("~/clicks"), True),  # a settings file has no shell
        ("./a:b/", os.path.abspath("a:b"), True),
        ("/var/clicks/", "/var/clicks", True),
        ("file:/var/clicks", "file:/var/clicks", True),
        ("s3a://bucket/", "s3a://bucket", False),
        ("hdfs:///user/clicks", "hdfs:///user/clicks", False),
    ],
)
def test_the_data_address_is_normalised(given: str, expected: str, is_local: bool) -> None:
    """A URI is kept, a path becomes absolute, and a slash at the end is removed."""
    settings = settings_with(data=given)

    assert (expected, is_local) == (settings.data, settings.is_local)


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
    files = ("logs/*.gz", "s3a://bucket/{a,b}/*", "./a:b")
    ago = datetime.fromisoformat(settings_with(since="-1d12h").since)

    assert [os.path.abspath(files[0]), files[1], os.path.abspath("a:b")] == [
        settings_with(files=one).files for one in files
    ]
    assert timedelta(hours=36) <= datetime.now(UTC) - ago < timedelta(hours=36, minutes=1)
    for given in ("2026-11-21T10:00:00Z", "2026-11-21T10:00", "2026-11-21T12:00:00+02:00"):
        assert "2026-11-21T10:00:00+00:00" == settings_with(since=given).since


def test_lists_are_texts_with_commas_or_sequences() -> None:
    """Duplicates are removed; hosts are in lower case and without `www.`."""
    settings = settings_with(
        lookupd_http_addresses=("a:4161, https://b/x", "[::1]:4161", "a:4161"),
        queries="metrics,archive",
        site_hosts=["www.Example.com"],
        enrich="",
    )

    assert ("a:4161", "https://b/x", "[::1]:4161") == settings.lookupd_http_addresses
    assert ("metrics", "archive") == settings.queries
    assert (("example.com",), ()) == (settings.site_hosts, settings.enrich)


def test_pairs_are_texts_pairs_or_a_mapping() -> None:
    """The last value of a key counts."""
    expected = (("spark.a", "2"), ("spark.b", "x=y"))

    assert expected == settings_with(spark=("spark.a=1", "spark.b=x=y", "spark.a=2")).spark
    assert expected == settings_with(spark=expected).spark
    assert expected == settings_with(spark=dict(expected)).spark


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *(("master", one) for one in ("", "local", "local[*]", "local[4,2]", "yarn")),
        *(("master", one) for one in ("local-cluster[2,1,1024]", "spark://a:7077,b:7077")),
        *(("master", "k8s://https://host:443"), ("metrics_address", ""), ("driver_memory", "4G")),
    ],
)
def test_values_that_are_passed_on(field: str, given: str) -> None:
    """Every kind of master that Spark has; sizes as for Java; an empty address."""
    assert given == getattr(settings_with(**{field: given}), field)


TIME = "write 5 (seconds), 500 milliseconds or 1 minute"
SIZE = " is not a size: write a whole number with a unit, such as 512m"
MASTER = " is not a master: use local[*], spark://host:7077, yarn or k8s://https://host:443"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"data": ""}, "--data is missing: name the folder for output and checkpoints"),
        ({"data": "/"}, "--data is missing: name the folder for output and checkpoints"),
        ({"data": "s3a:b"}, "--data=s3a:b: write s3a://host/path, or ./s3a:b for a local folder"),
        (
            {"data": "day[1]"},
            "--data=day[1]: readers would take [ for a pattern: rename the folder",
        ),
        ({"data": "a\nb"}, '--data="a\\nb": readers would take "\\n" for a pattern'),
        ({"topic": "a b"}, '--topic="a b" is not a valid name: use 1-64 characters'),
        ({"topic": ""}, '--topic="" is not a valid name'),
        ({"spam_topic": "a b"}, '--spam-topic="a b" is not a valid name'),
        ({"topic": 5}, "--topic=5: invalid string value type int"),
        ({"topic": "x#ephemeral"}, "--topic=x#ephemeral is not a valid name: use 1-64 characters"),
        ({"archive_channel": "x#ephemeral"}, "--archive-channel=x#ephemeral is not a valid name"),
        ({"topic": "x" * 60}, f"--metrics-topic={'x' * 60}.metrics is not a valid name"),
        ({"metrics_topic": "clicks"}, "--metrics-topic=clicks is the topic of the clicks"),
        (
            {"spam_analysis_channel": "metrics"},
            "--metrics-channel, --spam-analysis-channel: give each query a channel of its own",
        ),
        ({"queries": ()}, "--queries is empty: name one or more of archive, metrics, spam_ana"),
        ({"files": "x", "since": "-2h"}, "--since is for the topic: with --from, choose files by"),
        ({"since": "-2x"}, "--since=-2x: write 2026-11-21T10:00:00Z, or -2h"),
        ({"since": "monday"}, "--since=monday: write 2026"),
        ({"queries": ("metrik",)}, "--queries=metrik is unknown: did you mean metrics?"),
        ({"queries": 3}, "--queries: write a list of texts"),
        ({"publish": "yes"}, "--publish=yes: write true or false"),
        ({"max_offsets_per_trigger": 0}, "--max-offsets-per-trigger=0 is too small: use 1 or"),
        ({"max_offsets_per_trigger": 1.5}, "--max-offsets-per-trigger=1.5: invalid int value"),
        ({"shuffle_partitions": 20_000}, "--shuffle-partitions=20000 is too large: use 10000"),
        ({"shuffle_partitions": True}, "--shuffle-partitions=True: invalid int value type bool"),
        *(({"trigger": one}, TIME) for one in ("", "soon", "5 parsecs", "1 second later", "-1")),
        *(({"trigger": one}, TIME) for one in ("1e3", "1 s s", True)),
        *(({"driver_memory": one}, f"--driver-memory={one}{SIZE}") for one in ("512", "1.5g", "0")),
        ({"executor_memory": "much"}, f"--executor-memory=much{SIZE}"),
        *(({"master": one}, f"--master={one}{MASTER}") for one in ("locale", "host:7077", "mesos")),
        ({"run_dir": "s3a://b/run"}, "--run-dir=s3a://b/run: write a path of this machine"),
        ({"country_file": "/no/file"}, "--country-file=/no/file: this is no MMDB file, such as G"),
        ({"site_hosts": "http://a"}, "--site-hosts=http://a: write a host such as www.example.c"),
        ({"lookupd_http_addresses": "4161"}, "--lookupd-http-address=4161: not an address of the"),
        ({"lookupd_http_addresses": "a:70000"}, "--lookupd-http-address=a:70000: not an address"),
        ({"lookupd_http_addresses": "ftp://a"}, "--lookupd-http-address=ftp://a: not an address"),
        ({"metrics_address": "4180"}, "--metrics-address=4180 is not an address: write 127.0.0"),
        ({"format": "combind"}, "--format=combind is unknown: did you mean combined?"),
        ({"log_format": "$status"}, "--log-format=$status has no time: write $time_local, $time"),
        ({"log_format": "%h %d"}, '--log-format="%h %d" has no time: write'),
        ({"log_format": "$msec $a$b"}, "has no character between $a and $b"),
        ({"fields": "c-ip"}, "--fields=c-ip has no date and time: write the #Fields line"),
        ({"click": ("pth=a.b",)}, "--click: pth is no field of a click: did you mean path?"),
        ({"click": ("path=",)}, "--click: path has no path: write keys with points between"),
        ({"columns": ("time=a: int",)}, "--columns: time is a column of every click: choose"),
        ({"columns": ("Order Id=a: int",)}, '--columns: "Order Id" is no name of a column: use'),
        ({"columns": ("a=b: blob",)}, '--columns: a = "b: blob" is not "path: type" with one of'),
        ({"trusted_proxies": ("10/99",)}, "--trusted-proxies=10/99 is not a network: write 10"),
        ({"spark": ("spark.a",)}, "--spark: write KEY=VALUE"),
        ({"source": ("hush",)}, "--source: write KEY=VALUE"),
        ({"source": ("topic=x",)}, "--source: topic has a flag of its own: see --help"),
        ({"source": ("auth_secrt=hush",)}, "--source: unknown option auth_secrt: did you mean au"),
        ({"source": ("nsqdTimeoutMs=soon",)}, "--source: option nsqdTimeoutMs: expected a whole"),
        ({"source": ("startingOffsets=x",)}, "--source: option startingOffsets: expected"),
        ({"source": ("tls_cert=/no.pem",)}, "--source: option tls_cert '/no.pem': No such file"),
        ({"source": ("auth_secret=hu\0sh",)}, "--source: option auth_secret contains non-printab"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_flag(values: dict[str, object], sentence: str) -> None:
    """The sentence names the flag, its value unless it may be a secret, and what to write."""
    found = refusal(**values)

    assert sentence in found
    assert found.startswith("--")
    assert "hush" not in found


def test_a_secret_is_not_shown() -> None:
    """Options of the source go to source and sink; `repr`, which may be logged, has none."""
    settings = settings_with(
        lookupd_http_addresses=("a:4161", "b:4161"), source=("auth_secret=hush",)
    )

    assert {"lookupd_http_addresses": "a:4161,b:4161", "auth_secret": "hush"} == cluster_options(
        settings
    )
    assert "hush" not in repr(settings)
