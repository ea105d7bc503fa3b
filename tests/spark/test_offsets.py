"""Offsets: their form in checkpoints and options, topics, and how a batch is split into parts."""

import os

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
    Positions,
    TopicSelection,
    parse_positions,
)

backlogs = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000))

LOG = "ab" * 16
PLACE = {"index": 5, "ordinal": 5}
STREAM = (EARLIEST, LATEST, COMMITTED)


def test_a_key_has_an_address_and_a_log():
    """A key and its text convert into each other; a bare address is no key."""
    key = Key("[::1]:4150", LOG)

    assert key == offsets.parse_key(str(key))
    with pytest.raises(ValueError, match="4150"):
        offsets.parse_key("127.0.0.1:4150")
    for address in ("[::1]:4150", "h:1", "/run/nsqd.sock"):
        for topic in ("", "clicks", "a.b-c_d"):
            key = Key(address, LOG, topic)
            assert key == offsets.parse_key(str(key))
    assert f"h:1/clicks:{LOG}" == str(Key("h:1", LOG, "clicks"))


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
        {f"h:1/{LOG}": "x"},
        {f"h:1/{LOG}": None},
        {"h:1": 5},
        {f"h:1/{LOG}": 1.5},
        {f"h:1/{LOG}": {"index": 5}},
        {f"h:1/{LOG}": {"index": "x", "ordinal": 5}},
        {f"h:1/{LOG}": 5},
        {f"h:1/{LOG}": PLACE, "cut": 3},
        {f"h:1/{LOG}": PLACE, "cut": {"parts": 0, "records_max": 1}},
    ],
)
def test_an_offset_of_another_source_is_refused(wrong):
    """Anything but an offset of this source raises ValueError."""
    with pytest.raises(ValueError, match="not an offset of the source nsq"):
        Offset.parse(wrong)


@pytest.mark.parametrize("word", STREAM)
def test_a_word_is_the_position_in_every_log(word):
    """The words earliest, latest and committed apply to every log, in any case."""
    assert word == parse_positions(f" {word.upper()} ", STREAM, EARLIEST).of(Key("h:1", LOG, "t"))


def test_json_has_positions_of_nsqds_and_logs():
    """JSON maps an address or log to an index or a word.

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


@pytest.mark.parametrize(
    "text", ["soon", "[]", "7", '{"h:1": -3}', '{"h:1": true}', '{"h:1": "x"}', '{"h:1": 1.5}', "{"]
)
def test_an_invalid_position_is_refused(text):
    """Any other text raises a ValueError with the expected form."""
    with pytest.raises(ValueError, match=r"expected earliest, latest or JSON like \{"):
        parse_positions(text, (EARLIEST, LATEST), EARLIEST)


def test_earliest_is_refused_where_only_latest_is_allowed():
    """Where only `latest` is allowed, `earliest` is refused."""
    with pytest.raises(ValueError, match="expected latest"):
        parse_positions('{"h:1": "earliest"}', (LATEST,), LATEST)


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


def test_a_plain_word_has_no_unknown_logs():
    """A plain word has no names that could be unknown."""
    assert set() == Positions(EARLIEST).unknown(set())


@given(backlogs, st.integers(1, 50), st.integers(1, 5_000))
def test_parts_have_all_messages_within_the_limit(counts, parts, messages_max):
    """Parts hold all messages; none is above the limit or empty; sizes differ by at most 1."""
    cut = PartitionRule(parts, messages_max).counts(counts)

    assert {key: sum(pieces) for key, pieces in cut.items()} == counts
    for pieces in cut.values():
        assert max(pieces) <= messages_max
        assert max(pieces) - min(pieces) <= 1
        assert pieces == [0] or min(pieces) > 0


def test_larger_ranges_get_more_parts():
    """Larger ranges get more parts; every range gets at least one."""
    cut = PartitionRule(5, 1_000_000).counts({"a": 60_000, "b": 40_000, "c": 1})

    assert {"a": 3, "b": 2, "c": 1} == {key: len(pieces) for key, pieces in cut.items()}


@pytest.mark.parametrize("cores", [1, 64, None])
def test_by_default_the_number_of_messages_determines_the_parts(monkeypatch, cores):
    """Without options there is a part per 50,000 messages, up to PARTITIONS_MAX, on any machine."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert [1, 1, 2, 20, PARTITIONS_MAX] == [
        PartitionRule.of(messages, 0, 1_000_000).parts
        for messages in (0, 99_999, 100_000, 1_000_000, 100_000_000)
    ]
    assert PartitionRule(7, 10) == PartitionRule.of(1_000_000, 7, 10)


@pytest.mark.parametrize(
    ("topics", "read", "not_read"),
    [
        (TopicSelection(("clicks",)), ["clicks"], ["click", "clicks2", ""]),
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


def test_a_topic_selection_has_a_readable_form():
    """A selection's text, as errors and log lines use it."""
    found = (
        TopicSelection(("a",)),
        TopicSelection(("a", "b"), several=True),
        TopicSelection((), "a.*", several=True),
    )

    assert ["topic a", "topics a, b", "topic that matches a.*"] == [str(each) for each in found]
