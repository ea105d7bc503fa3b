"""Offsets: their form in checkpoints and options, topics, and how a batch is split into parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.spark import offsets
from sparq.spark.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    PARTITIONS_MAX,
    Key,
    LogPosition,
    Offset,
    PartitionRule,
    TopicSelection,
    parse_positions,
)

backlogs = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000))

LOG = "ab" * 16
PLACE = {"index": 5, "ordinal": 5}
STREAM = (EARLIEST, LATEST, COMMITTED)


@pytest.mark.parametrize("address", ["[::1]:4150", "h:1", "/run/nsqd.sock"])
@pytest.mark.parametrize("topic", ["", "clicks", "a.b-c_d"])
def test_a_key_has_an_address_a_log_and_perhaps_a_topic(address, topic):
    """A key and its text convert into each other; a bare address is no key."""
    key = Key(address, LOG, topic)

    assert key == offsets.parse_key(str(key))
    assert f"h:1/clicks:{LOG}" == str(Key("h:1", LOG, "clicks"))
    with pytest.raises(ValueError, match="4150"):
        offsets.parse_key("127.0.0.1:4150")


def test_an_offset_survives_the_checkpoint():
    """Parsing keeps each log's index, ordinal and `gone`, and the batch's `cut`."""
    given = {
        f"h:1/{LOG}": {"index": 1 << 53, "ordinal": 7},
        f"h:2/{LOG}": {"index": 5, "ordinal": 0, "gone": True},
        "cut": {"parts": 3, "records_max": 1000},
    }
    offset = Offset.parse(given)

    assert given == offset.as_json()
    assert LogPosition(1 << 53, 7) == offset.positions[Key("h:1", LOG)]
    assert offset.positions[Key("h:2", LOG)].gone
    assert PartitionRule(3, 1000) == offset.cut


@pytest.mark.parametrize(
    "wrong",
    [
        {"h:1": 5},
        *({f"h:1/{LOG}": value} for value in ("x", None, 1.5, 5, {"index": 5})),
        {f"h:1/{LOG}": {"index": "x", "ordinal": 5}},
        {f"h:1/{LOG}": PLACE, "cut": 3},
        {f"h:1/{LOG}": PLACE, "cut": {"parts": 0, "records_max": 1}},
    ],
)
def test_an_offset_of_another_source_is_refused(wrong):
    """Anything but an offset of this source raises ValueError."""
    with pytest.raises(ValueError, match="not an offset of the source nsq"):
        Offset.parse(wrong)


def test_json_has_positions_of_nsqds_and_logs():
    """JSON maps an address or log to an index or a word; a word alone is for all logs, in any case.

    Logs that are not named get the default.
    """
    text = f'{{"h:1": 7, "h:2": "latest", "h:4": "earliest", "h:5": "9", "h:6/{LOG}": 11}}'
    positions = parse_positions(text, STREAM, EARLIEST)

    found = [positions.of(Key(f"h:{number}", LOG, "clicks")) for number in range(1, 8)]

    assert [7, LATEST, EARLIEST, EARLIEST, 9, 11, EARLIEST] == found
    assert EARLIEST == positions.of(Key("h:6", "cd" * 16, "clicks"))
    assert {"h:5", f"h:6/{LOG}"} == positions.unknown(
        Key(f"h:{number}", LOG, "clicks") for number in range(1, 5)
    )
    for word in STREAM:
        alone = parse_positions(f" {word.upper()} ", STREAM, EARLIEST)
        assert (word, set()) == (alone.of(Key("h:1", LOG, "t")), alone.unknown(set()))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *(((EARLIEST, LATEST), text) for text in ("soon", "[]", "7", "{", '{"h:1": -3}')),
        *(((EARLIEST, LATEST), f'{{"h:1": {value}}}') for value in ("true", '"x"', "1.5")),
        ((LATEST,), '{"h:1": "earliest"}'),
    ],
)
def test_an_invalid_position_is_refused(words, text):
    """Any other text, or a word that is not allowed, raises a ValueError with the expected form."""
    with pytest.raises(ValueError, match=rf"expected {', '.join(words)} or JSON like \{{"):
        parse_positions(text, words, words[0])


def test_json_has_positions_of_topics():
    """JSON names a topic, or a topic at an address; the most specific name counts."""
    text = (
        f'{{"a": {{"h:1": 7, "h:2": "latest"}}, "b": "committed", "h:1": "latest", "c": {{}}, '
        f'"h:3/b:{LOG}": {{"index": 9, "ordinal": 8}}, "cut": "latest"}}'
    )
    positions = parse_positions(text, STREAM, EARLIEST)

    for address, topic, expected in (
        ("h:1", "a", 7),
        ("h:2", "a", LATEST),
        ("h:3", "a", EARLIEST),
        ("h:1", "b", LATEST),
        ("h:2", "b", COMMITTED),
        ("h:3", "b", LogPosition(9, 8)),
        ("h:1", "c", LATEST),
        ("h:2", "cut", LATEST),
    ):
        assert expected == positions.of(Key(address, LOG, topic)), (address, topic)
    assert {"a at h:1", "a at h:2", "b", f"h:3/b:{LOG}", "cut"} == positions.unknown(
        [Key("h:1", LOG, "c")]
    )
    assert {"a at h:1", "a at h:2", "h:1"} == positions.unknown(
        [Key("h:3", LOG, "b"), Key("h:9", LOG, "cut")]
    )


def test_an_end_offset_is_accepted_as_starting_offsets():
    """The endOffset of a query's progress is accepted as startingOffsets of another query."""
    text = f'{{"h:1/{LOG}": {{"index": 7, "ordinal": 5}}, "cut": {{"parts": 1, "records_max": 9}}}}'
    positions = parse_positions(text, STREAM, EARLIEST)

    assert LogPosition(7, 5) == positions.of(Key("h:1", LOG, "clicks"))
    assert {f"h:1/{LOG}"} == set(positions.named)


@given(backlogs, st.integers(1, 50), st.integers(1, 5_000))
def test_parts_have_all_messages_within_the_limit(counts, parts, messages_max):
    """Parts hold all messages; none is above the limit or empty; sizes differ by at most 1.

    Larger ranges get more parts.
    """
    cut = PartitionRule(parts, messages_max).counts(counts)

    assert {key: sum(pieces) for key, pieces in cut.items()} == counts
    for pieces in cut.values():
        assert max(pieces) <= messages_max
        assert max(pieces) - min(pieces) <= 1
        assert pieces == [0] or min(pieces) > 0
    larger = PartitionRule(5, 1_000_000).counts({"a": 60_000, "b": 40_000, "c": 1})
    assert {"a": 3, "b": 2, "c": 1} == {key: len(pieces) for key, pieces in larger.items()}


def test_by_default_the_number_of_messages_determines_the_parts():
    """Without options there is a part per 50,000 messages, up to PARTITIONS_MAX."""
    assert [1, 1, 2, 20, PARTITIONS_MAX] == [
        PartitionRule.of(messages, 0, 1_000_000).parts
        for messages in (0, 99_999, 100_000, 1_000_000, 100_000_000)
    ]
    assert PartitionRule(7, 10) == PartitionRule.of(1_000_000, 7, 10)


@pytest.mark.parametrize(
    ("topics", "read", "not_read"),
    [
        (TopicSelection(("a", "b"), several=True), ["a", "b"], ["ab"]),
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
    one, two = TopicSelection(("clicks",)), TopicSelection(("clicks", "views"), several=True)
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
