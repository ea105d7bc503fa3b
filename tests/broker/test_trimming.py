"""Messages kept for replay, and messages that a channel with too much lag loses."""

from __future__ import annotations

import pytest

from sparq.log.segment import SegmentInfo
from sparq.protocol import commands
from tests.broker.house import House

FILE_BYTES = 20_000
BODY = b"x" * 6_000
"""Three of these messages fill a segment."""


def house_with(**options: int) -> House:
    return House(max_bytes_per_file=FILE_BYTES, **options)


def fill(house: House, count: int = 30, seconds: float = 1.0) -> None:
    for _ in range(count):
        house.publish("t", BODY)
        house.advance(seconds)


def finish_all(house: House) -> None:
    consumer = house.consumer("t", "c", rdy=2500)
    consumer.finish(consumer.messages())
    house.turn()
    consumer.say(b"CLS\n")
    house.broker.disconnect(consumer.session, house.clock.now())


def segments(house: House) -> list[SegmentInfo]:
    return house.broker.topics["t"].stream.log.segments()


def trimmed(house: House) -> House:
    """Let several trims run, and the syncs that they wait for."""
    for _ in range(5):
        house.pass_time(1.1)
    return house


def replayed(house: House) -> int:
    house.broker.seek_channel("t", "c", "earliest", house.clock.now())
    house.turn()
    return house.channel("t", "c").depth


def test_without_retention_only_the_file_that_is_written_to_stays() -> None:
    """Without retention only the newest segment is kept once all is finished."""
    house = house_with()
    house.consumer("t", "c")
    fill(house)
    finish_all(house)

    assert len(segments(trimmed(house))) == 1


def test_retention_by_bytes() -> None:
    """`retention_bytes` keeps at least that many bytes, and less than two segments more."""
    house = house_with(retention_bytes=60_000)
    house.consumer("t", "c")
    fill(house)
    finish_all(house)
    trimmed(house)

    sizes = [segment.size_bytes for segment in segments(house)]
    assert 60_000 <= sum(sizes) < 60_000 + 2 * FILE_BYTES
    assert replayed(house) == sum(segment.messages for segment in segments(house))


def test_retention_by_time() -> None:
    """`retention_time_ns` keeps a message for that time; then its segment is deleted."""
    house = house_with(retention_time_ns=100 * 10**9)
    house.consumer("t", "c")
    fill(house)
    finish_all(house)

    assert replayed(trimmed(house)) == 30
    finish_all(house)
    house.pass_time(75.0)
    kept = replayed(trimmed(house))
    assert 12 <= kept <= 24
    finish_all(house)
    house.pass_time(100.0)
    assert 1 <= replayed(trimmed(house)) <= 3


def test_either_retention_keeps() -> None:
    """With both options, a segment is kept while either one keeps it."""
    house = house_with(retention_time_ns=10 * 10**9, retention_bytes=100_000)
    house.consumer("t", "c")
    fill(house)
    finish_all(house)
    house.pass_time(1000.0)
    trimmed(house)

    assert sum(segment.size_bytes for segment in segments(house)) >= 100_000


def test_retention_outlives_a_restart() -> None:
    """Retained messages can still be replayed after a restart."""
    house = house_with(retention_time_ns=100 * 10**9)
    house.consumer("t", "c")
    fill(house)
    finish_all(house)
    trimmed(house)
    house.restart()

    assert replayed(trimmed(house)) == 30


def test_replay_forth_and_back_while_a_consumer_is_on() -> None:
    """A seek also works while a consumer is connected.

    The channel delivers from its new position, and a FIN for an earlier delivery gets E_FIN_FAILED.
    """
    house = house_with(retention_bytes=1 << 20)
    consumer = house.consumer("t", "c", rdy=100)
    fill(house, 12)
    first = consumer.messages()
    consumer.finish(first[:6])

    house.broker.seek_channel("t", "c", first[3].index, house.clock.now())
    house.turn()
    again = consumer.messages()
    assert [message.id for message in again] == [message.id for message in first[3:]]
    consumer.answers()
    consumer.say(commands.fin(first[0].id))
    assert consumer.answers() == [b"E_FIN_FAILED FIN " + first[0].id + b" failed ID not in flight"]

    house.broker.seek_channel("t", "c", "latest", house.clock.now())
    house.turn()
    assert (house.channel("t", "c").depth, consumer.messages()) == (0, [])
    house.publish("t", b"next")
    assert consumer.bodies() == [b"next"]


# Lag


def test_a_channel_that_falls_too_far_behind_loses_its_oldest() -> None:
    """A channel above `max_channel_lag_bytes` drops its oldest messages, in whole segments.

    They are counted and the segments deleted. The rest is delivered.
    """
    house = house_with(max_channel_lag_bytes=50_000)
    house.consumer("t", "slow")
    house.consumer("t", "quick")
    fill(house)
    trimmed(house)

    slow = house.channel("t", "slow")
    assert slow.voided_count > 0
    assert slow.voided_count + slow.depth == 30
    assert sum(segment.size_bytes for segment in segments(house)) <= 50_000
    assert any("t:slow is too far behind" in note for note in house.broker.notes)
    assert len(house.consumer("t", "slow", rdy=100).messages()) == slow.depth


def test_a_lag_in_time_spares_the_file_that_is_written_to() -> None:
    """`max_channel_lag_time_ns` drops old unread messages in whole segments.

    The newest segment is kept.
    """
    house = house_with(max_channel_lag_time_ns=10 * 10**9)
    house.consumer("t", "c")
    fill(house, 30)
    house.pass_time(1000.0)
    trimmed(house)

    assert 1 <= house.channel("t", "c").depth <= 3


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_what_was_voided_stays_voided(how: str) -> None:
    """Dropped messages do not return after a crash or a restart."""
    house = house_with(max_channel_lag_bytes=50_000, sync_timeout_ns=1)
    house.consumer("t", "c")
    fill(house)
    trimmed(house)
    depth = house.channel("t", "c").depth

    getattr(house, how)()

    assert house.channel("t", "c").depth == depth


def test_what_is_in_flight_or_deferred_is_not_voided() -> None:
    """A lag limit drops only unread messages, not those in flight or deferred."""
    house = house_with(max_channel_lag_bytes=50_000)
    consumer = house.consumer("t", "c", rdy=2)
    house.publish("t", b"later", defer_ms=3_600_000)
    fill(house)
    held = consumer.messages()
    trimmed(house)

    figures = house.channel("t", "c")
    assert figures.in_flight_count == len(held) == 2
    assert figures.deferred_count == 1
    assert figures.voided_count + figures.depth == 28
    consumer.finish(held)
    assert house.channel("t", "c").in_flight_count == 2


@pytest.mark.parametrize("end", ["nothing", "crash", "restart", "checkpoint", "twice"])
def test_what_is_deferred_is_delivered_though_its_file_is_voided(end: str) -> None:
    """Deferred messages in a dropped segment are delivered once, when they are due.

    This holds across crashes, restarts and checkpoints. Dropped unread messages do not return.
    """
    house = house_with(max_channel_lag_bytes=50_000)
    house.consumer("t", "c").close()
    for number in range(30):
        house.publish("t", BODY)
        if number % 5 == 0:
            house.publish("t", b"later %d" % number, defer_ms=60_000)
    trimmed(house)
    depth = house.channel("t", "c").depth
    assert 6 == house.channel("t", "c").deferred_count
    assert 0 < depth < 15
    if end == "checkpoint":
        house.checkpoint("t")
    if end != "nothing":
        getattr(house, "crash" if end != "restart" else end)()
    if end == "twice":
        trimmed(house)
        house.restart()

    assert (depth, 6) == (house.channel("t", "c").depth, house.channel("t", "c").deferred_count)
    consumer = house.consumer("t", "c", rdy=2_500)
    unread = consumer.messages()
    consumer.finish(unread)
    house.pass_time(60)
    wanted = sorted(b"later %d" % number for number in range(0, 30, 5))
    assert (depth, wanted) == (len(unread), sorted(consumer.bodies()))


def test_a_deferred_message_pins_its_file_and_not_the_log() -> None:
    """A deferred message keeps only its own segment; the other finished ones are deleted."""
    house = house_with()
    house.consumer("t", "c")
    fill(house, 9)
    house.publish("t", BODY, defer_ms=86_400_000)
    fill(house, 30)
    finish_all(house)
    trimmed(house)

    assert len(segments(house)) == 2
    house.pass_time(86_400.0)
    assert house.channel("t", "c").depth == 1


def test_a_stopped_range_reader_is_bounded() -> None:
    """Decision 32: the lag limit also applies to the channel of a range reader."""
    house = house_with(max_channel_lag_bytes=50_000)
    reader = house.connect()
    house.consumer("t", "other")
    reader.say(commands.attach("t", "spark"))
    fill(house)
    trimmed(house)

    figures = house.channel("t", "spark")
    assert figures.voided_count > 0
    assert figures.voided_count + figures.depth == 30
    house.crash()
    assert house.channel("t", "spark").depth == figures.depth


# Segments


def test_finished_segments_go_and_a_message_pins_only_its_own() -> None:
    """An unfinished message keeps its own segment.

    The finished segments before and after it are deleted.
    """
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    messages = consumer.messages()
    log = house.broker.topics["t"].stream.log
    before = len(log.segments())
    consumer.finish([m for m in messages if m is not messages[20]])
    house.pass_time(3.0)

    segments = log.segments()
    assert before > 5
    assert len(segments) == 2
    assert segments[0].first_index <= messages[20].index < segments[0].end_index
    files = [path for path in house.disk.paths() if path.endswith(".log")]
    assert len(files) == 2


def test_no_segment_goes_before_its_finishes_are_synced() -> None:
    """Decision 11: a segment is deleted only after its FINs are synced.

    Otherwise a power cut could move the cursor back to deleted messages.
    """
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    house.advance(1.5)
    house.broker.tick(house.clock.now())
    topic = house.broker.topics["t"]
    assert topic.writer is not None
    assert len(topic.stream.log.segments()) > 5
    assert not topic.writer.is_synced()

    house.turn()

    assert topic.writer.is_synced()
    assert len(topic.stream.log.segments()) == 1


def test_a_deferred_publish_pins_its_segment() -> None:
    """A deferred publish is delivered when due, after all later messages are finished."""
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    house.publish("t", b"deferred", defer_ms=60_000)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    house.pass_time(5.0)
    house.pass_time(56.0)

    assert consumer.bodies() == [b"deferred"]


def test_segments_before_the_mark_go_without_channels() -> None:
    """Without channels, messages that deleted channels had seen are deleted.

    Messages published since are kept for the next channel.
    """
    house = House(max_bytes_per_file=2000)
    house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    house.broker.delete_channel("t", "c", house.clock.now())
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    house.pass_time(5.0)

    assert house.consumer("t", "d", rdy=100).bodies() == [b"%d" % n * 150 for n in range(40)]
    assert house.topic("t").log_messages < 50
