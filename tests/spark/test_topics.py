"""The topics that a source reads, and the keys of their logs in offsets."""

import pytest

from sparq.spark.offsets import Key
from sparq.spark.topics import TopicSelection

LOG = "ab" * 16


@pytest.mark.parametrize(
    ("topics", "read", "not_read"),
    [
        (TopicSelection.of_one("clicks"), ["clicks"], ["click", "clicks2", ""]),
        (TopicSelection(("a", "b"), several=True), ["a", "b"], ["ab"]),
        (
            TopicSelection((), "clicks_.*", several=True),
            ["clicks_", "clicks_de"],
            ["x_clicks_de", "clicks"],
        ),
        (TopicSelection((), "a|b.", several=True), ["a", "bc"], ["b", "ac", "aa"]),
        (TopicSelection((), ".*", several=True), ["a"], ["a#ephemeral"]),
    ],
)
def test_a_pattern_matches_whole_names_of_topics(topics, read, not_read):
    """A pattern matches whole names, and never ephemeral topics: they have no log."""
    assert all(map(topics.has, read))
    assert not any(map(topics.has, not_read))


def test_with_several_topics_a_key_has_its_topic():
    """With several topics a key contains the topic; with one topic keys are unchanged.

    A key without a topic may belong to any of the given topics.
    """
    one, two = TopicSelection.of_one("clicks"), TopicSelection(("clicks", "views"), several=True)
    old, new = Key("h:1", LOG), Key("h:1", LOG, "views")

    assert old == one.key("h:1", "clicks", LOG)
    assert new == two.key("h:1", "views", LOG)
    assert (("clicks",), ("clicks", "views"), ("views",)) == (
        one.of_key(old),
        two.of_key(old),
        two.of_key(new),
    )
    assert [True, False] == [one.reads(key) for key in (old, new)]
    assert [True, True] == [two.reads(key) for key in (old, new)]


def test_a_topic_selection_has_a_readable_form():
    """A selection's text, as errors and log lines use it."""
    found = (
        TopicSelection.of_one("a"),
        TopicSelection(("a", "b"), several=True),
        TopicSelection((), "a.*", several=True),
    )

    assert ["topic a", "topics a, b", "topic that matches a.*"] == [str(each) for each in found]
