"""The log of an ephemeral topic: the same interface without files."""

from sparq.log.memory_log import MemoryLog
from sparq.testing import ManualClock
from tests.log.log_operations import NODE, publish, read_all


def test_messages_are_found_until_their_segment_is_dropped() -> None:
    """Messages are found as in a log on disk until their segment is dropped."""
    clock = ManualClock()
    log = MemoryLog(node_id=NODE, now=clock.now())
    messages = {}
    for number in range(600):
        bodies = [b"%d" % number * 900]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
    assert read_all(log) == messages
    assert 1 < len(log.segments()) < 6
    assert log.size_bytes > sum(map(len, messages.values()))

    for segment in log.segments():
        if segment.sealed:
            drop = log.drop(segment)
            drop.run()
            assert drop.error is None

    kept = {index: body for index, body in messages.items() if index >= log.first_index}
    assert 0 < len(kept) < 600
    assert read_all(log) == kept
    assert log.size_bytes < 2 << 20
    assert (log.unsynced.count, log.synced_end) == (0, log.written_end)
