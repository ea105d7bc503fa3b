"""The settings of the pipeline: defaults, normal forms, errors."""

import dataclasses

import pytest

from sparq.pipeline.settings import QUERIES, Settings, flags
from tests.pipeline.settings_examples import refusal, settings_with


def test_defaults() -> None:
    """Only the data folder is required; everything else has a default."""
    settings = Settings(data="data")

    assert ("archive", "metrics", "spam_analysis") == settings.queries == QUERIES
    assert {query: query for query in QUERIES} == settings.channels
    assert {
        "metrics": "clicks.metrics",
        "rejected": "clicks.rejected",
        "spam": "clicks.spam",
    } == settings.result_topics
    assert ("clicks", "1 second") == (settings.topic, settings.trigger)
    assert ("", "", 0) == (settings.master, settings.driver_memory, settings.shuffle_partitions)


def test_settings_made_from_other_settings_are_equal() -> None:
    """Settings made from the values of other settings are equal to them."""
    settings = settings_with(master="local[2]", driver_memory="2G", spark=(("spark.a", "b"),))

    assert settings == dataclasses.replace(settings)


def test_every_setting_is_documented_with_its_flag() -> None:
    """The docstring describes each field, and the help each flag."""
    for flag in flags():
        assert f"        {flag.field}: " in (Settings.__doc__ or ""), flag.field
        assert flag.help
        assert flag.name == flag.key


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


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"topic": "a b"}, '--topic="a b" is not a valid topic name: use 1-64 characters'),
        ({"topic": ""}, '--topic="" is not a valid topic name'),
        ({"topic": "x#ephemeral"}, "--topic=x#ephemeral is ephemeral"),
        ({"archive_channel": "x#ephemeral"}, "--archive-channel=x#ephemeral is ephemeral"),
        ({"topic": "x" * 60}, f"--metrics-topic={'x' * 60}.metrics is not a valid topic name"),
        ({"metrics_topic": "clicks"}, "--metrics-topic=clicks is the topic of the clicks"),
        (
            {"spam_analysis_channel": "metrics"},
            "--spam-analysis-channel=metrics is also the channel of metrics: give each",
        ),
        ({"queries": ()}, "--queries is empty: name one or more of archive, metrics, spam_ana"),
        ({"queries": ("metrik",)}, "--queries=metrik is unknown: did you mean metrics?"),
        ({"max_offsets_per_trigger": 0}, "--max-offsets-per-trigger=0 is too small: use 1 or"),
        ({"shuffle_partitions": 20_000}, "--shuffle-partitions=20000 is too large: use 10000"),
        (
            {"spark": (("spark.driver.extraJavaOptions", "-Xss2m -version"),)},
            "--spark: spark.driver.extraJavaOptions contains -version, with which Java ends at",
        ),
        ({"run_dir": "s3a://b/run"}, "--run-dir=s3a://b/run is a URI: name a local folder"),
        ({"format": "combind"}, "--format=combind is unknown: did you mean combined?"),
        ({"log_format": "$status"}, "--log-format=$status has no time: write $time_local, $time"),
        ({"fields": "c-ip"}, "--fields=c-ip has no date and time: write the #Fields line"),
        ({"click": ("pth=a.b",)}, "--click: pth is no field of a click: did you mean path?"),
        ({"click": ("path=",)}, "--click: path has no path: write keys with points between"),
        ({"columns": ("time=a: int",)}, "--columns: time is a column of every click: choose"),
        ({"columns": ("a=b: blob",)}, '--columns: a = "b: blob" is not "path: type" with one of'),
        ({"trusted_proxies": ("10/99",)}, "--trusted-proxies=10/99 is not a network: write 10"),
        ({"topic": 5}, "--topic=5 has the wrong type: write a string"),
        ({"publish": "yes"}, "--publish=yes has the wrong type: write true or false"),
        ({"shuffle_partitions": True}, "--shuffle-partitions=true has the wrong type: write a wh"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_flag(values: dict[str, object], sentence: str) -> None:
    """The sentence begins with the flag and its value."""
    assert refusal(**values).startswith(sentence)


def test_queries_that_do_not_run_have_no_channel() -> None:
    """A query that does not run has no channel, and its channel's name cannot conflict."""
    settings = settings_with(queries=("metrics",), archive_channel="metrics")

    assert {"metrics": "metrics"} == settings.channels


def test_a_secret_is_not_shown() -> None:
    """The representation of settings, which may be logged, has no secret."""
    assert "hush" not in repr(settings_with(source=("auth_secret=hush",)))
