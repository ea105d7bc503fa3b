"""Messages kept for replay, and messages that a channel with too much lag loses."""

from __future__ import annotations

import pytest

from sparq.log.segment import SegmentInfo
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness

FILE_BYTES = 20_000
BODY = b"x" * 6_000
"""Three of these messages fill a segment."""


def harness_with_small_files(**options: int) -> BrokerHarness:
    return BrokerHarness(max_bytes_per_file=FILE_BYTES, **options)


def fill(harness: BrokerHarness, count: int = 30, seconds: float = 1.0) -> None:
    for _ in range(count):
        harness.publish("t", BODY)
        harness.advance(seconds)


def finish_all(harness: BrokerHarness) -> None:
    consumer = harness.consumer("t", "c", rdy=2500)
    consumer.finish(consumer.messages())
    harness.turn()
    consumer.say(b"CLS\n")
    harness.broker.disconnect(consumer.session, harness.clock.now())


def segments(harness: BrokerHarness) -> list[SegmentInfo]:
    return harness.broker.topics["t"].stream.log.segments()


def after_trims(harness: BrokerHarness) -> BrokerHarness:
    """Let several trims run, and the syncs that they wait for."""
    for _ in range(5):
        harness.pass_time(1.1)
    return harness


def replayed(harness: BrokerHarness) -> int:
    harness.broker.seek("t", "c", "earliest", harness.clock.now())
    harness.turn()
    return harness.channel("t", "c").depth


def test_without_retention_only_the_newest_segment_is_kept() -> None:
    """Without retention only the newest segment is kept once all is finished."""
    harness = harness_with_small_files()
    harness.consumer("t", "c")
    fill(harness)
    finish_all(harness)

    assert len(segments(after_trims(harness))) == 1


def test_retention_by_bytes() -> None:
    """`retention_bytes` keeps at least that many bytes, and less than two segments more."""
    harness = harness_with_small_files(retention_bytes=60_000)
    harness.consumer("t", "c")
    fill(harness)
    finish_all(harness)
    after_trims(harness)

    sizes = [segment.size_bytes for segment in segments(harness)]
    assert 60_000 <= sum(sizes) < 60_000 + 2 * FILE_BYTES
    assert replayed(harness) == sum(segment.messages for segment in segments(harness))


def test_retention_by_time() -> None:
    """`retention_time_ns` keeps a message for that time; then its segment is deleted."""
    harness = harness_with_small_files(retention_time_ns=100 * 10**9)
    harness.consumer("t", "c")
    fill(harness)
    finish_all(harness)

    assert replayed(after_trims(harness)) == 30
    finish_all(harness)
    harness.pass_time(75.0)
    kept = replayed(after_trims(harness))
    assert 12 <= kept <= 24
    finish_all(harness)
    harness.pass_time(100.0)
    assert replayed(after_trims(harness)) == 0


def test_retention_by_time_at_a_low_rate() -> None:
    """One message a minute: each is gone after twice `retention_time`, though no file is full.

    The last ones go, too, when nothing follows them; after a restart as well.
    """
    harness = BrokerHarness(retention_time_ns=600 * 10**9)
    consumer = harness.consumer("t", "c", rdy=10)
    for minute in range(60):
        harness.publish("t", b"%d" % minute)
        consumer.finish(consumer.messages())
        harness.pass_time(60)
    consumer.close()
    after_trims(harness)

    assert 10 <= replayed(harness) <= 21
    assert len(segments(harness)) <= 3
    finish_all(harness)
    harness.restart()
    harness.pass_time(1300)
    assert replayed(after_trims(harness)) == 0
    assert segments(harness) == []


def test_a_segment_is_kept_while_either_retention_option_keeps_it() -> None:
    """With both options, a segment is kept while either one keeps it."""
    harness = harness_with_small_files(retention_time_ns=10 * 10**9, retention_bytes=100_000)
    harness.consumer("t", "c")
    fill(harness)
    finish_all(harness)
    harness.pass_time(1000.0)
    after_trims(harness)

    assert sum(segment.size_bytes for segment in segments(harness)) >= 100_000


# Lag


@pytest.mark.parametrize("how", ["", "crash", "restart"])
@pytest.mark.parametrize(
    ("option", "count"),
    [("max_channel_lag_time_ns", "voided_count"), ("message_ttl_ns", "expired_count")],
)
def test_an_age_limit_holds_at_low_rates(option: str, count: str, how: str) -> None:
    """Messages older than the limit are dropped one by one, though the file is far from full.

    After a restart, their times are read from the file.
    """
    harness = BrokerHarness(**{option: 5 * 10**9})
    harness.consumer("t", "c").close()
    for _ in range(10):
        harness.publish("t", b"few")
        harness.advance(1.0)
    if how:
        getattr(harness, how)()
    for _ in range(2):
        harness.pass_time(1.1)
    few = harness.channel("t", "c")
    lost = getattr(few, count)
    harness.pass_time(5.0)
    after_trims(harness)

    assert 2 <= few.depth <= 4
    assert few.depth + lost == 10
    assert harness.channel("t", "c").depth == 0
    assert getattr(harness.channel("t", "c"), count) == 10
    harness.publish("t", b"new")
    assert [b"new"] == harness.consumer("t", "c", rdy=9).bodies()


@pytest.mark.parametrize("how", ["", "crash", "restart"])
def test_a_limit_in_bytes_holds_within_one_file(how: str) -> None:
    """A channel keeps its newest messages within the limit, though the file is far from full."""
    harness = BrokerHarness(max_channel_lag_bytes=1_000)
    harness.consumer("t", "c").close()
    for number in range(100):
        harness.publish("t", b"%066d" % number)
    if how:
        getattr(harness, how)()
    after_trims(harness)

    depth = harness.channel("t", "c").depth
    # With its header and its share of the batch, a message takes 100 to 200 bytes.
    assert 4 <= depth <= 10
    bodies = harness.consumer("t", "c", rdy=100).bodies()
    assert [b"%066d" % number for number in range(100 - depth, 100)] == bodies


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_dropped_messages_do_not_return_after_a_restart(how: str) -> None:
    """Dropped messages do not return after a crash or a restart."""
    harness = harness_with_small_files(max_channel_lag_bytes=50_000, sync_timeout_ns=1)
    harness.consumer("t", "c")
    fill(harness)
    after_trims(harness)
    depth = harness.channel("t", "c").depth

    getattr(harness, how)()

    assert harness.channel("t", "c").depth == depth


def test_a_lag_limit_keeps_messages_in_flight_and_deferred_ones() -> None:
    """A lag limit drops only unread messages, not those in flight or deferred."""
    harness = harness_with_small_files(max_channel_lag_bytes=50_000)
    consumer = harness.consumer("t", "c", rdy=2)
    harness.publish("t", b"later", defer_ms=3_600_000)
    fill(harness)
    held = consumer.messages()
    after_trims(harness)

    figures = harness.channel("t", "c")
    assert figures.in_flight_count == len(held) == 2
    assert figures.deferred_count == 1
    assert figures.voided_count + figures.depth == 28
    consumer.finish(held)
    assert harness.channel("t", "c").in_flight_count == 2


def test_the_lag_limit_applies_to_a_range_readers_channel() -> None:
    """The lag limit also applies to the channel of a range reader."""
    harness = harness_with_small_files(max_channel_lag_bytes=50_000)
    reader = harness.connect()
    harness.consumer("t", "other")
    reader.say(commands.attach("t", "spark"))
    fill(harness)
    after_trims(harness)

    figures = harness.channel("t", "spark")
    assert figures.voided_count > 0
    assert figures.voided_count + figures.depth == 30
    harness.crash()
    assert harness.channel("t", "spark").depth == figures.depth


# Segments


def test_an_unfinished_message_keeps_only_its_own_segment() -> None:
    """An unfinished message keeps its own segment.

    The finished segments before and after it are deleted.
    """
    harness = BrokerHarness(max_bytes_per_file=2000)
    consumer = harness.consumer("t", "c", rdy=100)
    for n in range(40):
        harness.publish("t", b"%d" % n * 150)
    messages = consumer.messages()
    log = harness.broker.topics["t"].stream.log
    before = len(log.segments())
    consumer.finish([m for m in messages if m is not messages[20]])
    harness.pass_time(3.0)

    segments = log.segments()
    assert before > 5
    assert len(segments) == 2
    assert segments[0].first_index <= messages[20].index < segments[0].end_index
    files = [path for path in harness.disk.paths() if path.endswith(".log")]
    assert len(files) == 2


def test_a_segment_is_deleted_only_after_its_fins_are_synced() -> None:
    """A segment is deleted only after its FINs are synced.

    Otherwise a power cut could move the cursor back to deleted messages.
    """
    harness = BrokerHarness(max_bytes_per_file=2000)
    consumer = harness.consumer("t", "c", rdy=100)
    for n in range(40):
        harness.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    harness.advance(1.5)
    harness.broker.tick(harness.clock.now())
    topic = harness.broker.topics["t"]
    assert topic.writer is not None
    assert len(topic.stream.log.segments()) > 5
    assert not topic.writer.is_synced()

    harness.turn()

    assert topic.writer.is_synced()
    assert len(topic.stream.log.segments()) == 1


def test_without_channels_segments_before_the_mark_are_deleted() -> None:
    """Without channels, messages that deleted channels had seen are deleted.

    Messages published since are kept for the next channel.
    """
    harness = BrokerHarness(max_bytes_per_file=2000)
    harness.consumer("t", "c", rdy=100)
    for n in range(40):
        harness.publish("t", b"%d" % n * 150)
    harness.broker.delete_channel("t", "c", harness.clock.now())
    for n in range(40):
        harness.publish("t", b"%d" % n * 150)
    harness.pass_time(5.0)

    assert harness.consumer("t", "d", rdy=100).bodies() == [b"%d" % n * 150 for n in range(40)]
    assert harness.topic("t").log_messages < 50
