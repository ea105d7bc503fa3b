"""Which topics a source reads, and what their logs are called in offsets."""

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
def test_names_and_patterns(topics, read, not_read):
    """A pattern matches whole names, and no topic without a log."""
    assert all(map(topics.has, read))
    assert not any(map(topics.has, not_read))


def test_a_key_names_the_topic_where_there_are_several():
    """One topic leaves its keys as they were; what an old key is of may be any of the names."""
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


def test_topics_in_words():
    """As errors and log lines say them."""
    found = (
        TopicSelection.of_one("a"),
        TopicSelection(("a", "b"), several=True),
        TopicSelection((), "a.*", several=True),
    )

    assert ["topic a", "topics a, b", "topic that matches a.*"] == [str(each) for each in found]
