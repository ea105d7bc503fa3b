"""Importing one topic of Go's nsqd into a new log and ledger, and the size of its commits."""

from pathlib import Path

import numpy as np
import pytest

from sparq.log.disk import RealDisk
from sparq.log.ledger import Ledger
from sparq.migration.queues import survey
from sparq.migration.records import FIXED_SIZE, GoRecords
from sparq.migration.topic_import import (
    BATCH_BYTES,
    BATCH_COUNT,
    ImportStopped,
    Tally,
    Target,
    batches,
    import_topic,
)
from sparq.testing import ManualClock
from tests.support.go_data import GoQueue, record, write_metadata

CLOCK = ManualClock()


def piece(*sizes: int) -> GoRecords:
    """Return messages with bodies of these sizes."""
    data = b"".join(record(b"x" * size, number) for number, size in enumerate(sizes))
    lengths = np.array(sizes, np.int64) + FIXED_SIZE
    starts = np.cumsum(lengths + 4) - lengths
    return GoRecords(data, starts, lengths)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5], [1]),
        ([5] * (BATCH_COUNT + 3), [BATCH_COUNT, 3]),
        ([BATCH_BYTES * 2], [1]),
        ([5, BATCH_BYTES * 2, 5, 5], [1, 1, 2]),
        ([BATCH_BYTES // 2 - FIXED_SIZE] * 5, [2, 2, 1]),
    ],
)
def test_batches_are_limited_to_batch_bytes(sizes: list[int], expected: list[int]) -> None:
    """``batches`` keeps all messages in order; one larger than BATCH_BYTES is a batch alone."""
    runs = list(batches(piece(*sizes)))

    assert expected == list(map(len, runs))
    assert sizes == [body.nbytes for run in runs for body in run.bodies()]


def target_in(folder: Path) -> Target:
    return Target(
        RealDisk(),
        str(folder),
        node_id=7,
        floor_index=0,
        max_bytes_per_file=1 << 20,
        clock=CLOCK.now,
    )


def test_each_channel_gets_its_own_queue_and_the_topics_queue(tmp_path: Path) -> None:
    """The log has all queues in order; each channel's ledger skips the other channels' queues."""
    write_metadata(tmp_path, {"clicks": {"a": False, "b": True}})
    GoQueue(tmp_path, "clicks:a").put(b"a0", b"a1").put(b"a2", attempts=3).close()
    GoQueue(tmp_path, "clicks:b").put(b"b0", b"b1").close()
    GoQueue(tmp_path, "clicks").put(b"own").close()
    topic = survey(RealDisk(), str(tmp_path)).topics["clicks"]
    folder = tmp_path / "t-clicks"
    target, tally = target_in(folder), Tally(0, CLOCK.now, lambda: False)

    import_topic(RealDisk(), str(tmp_path), topic, target, tally)

    first, count = target.log.first_index, target.log.messages_between(0, target.log.end_index)
    target.close()
    (log,) = folder.glob("*.log")
    places = [log.read_bytes().index(b"%s" % body) for body in (b"a0", b"a1", b"a2", b"b0", b"own")]
    state, _ = Ledger.read(RealDisk(), str(folder))
    a, b = state.channels["a"], state.channels["b"]
    assert (6, 6, 0) == (count, tally.messages, tally.damaged)
    assert sorted(places) == places
    assert first + 6 == state.mark
    assert (first, first + 3) == (a.start, b.start)
    assert ([(first + 3, first + 5)], []) == (a.finished, b.finished)
    assert {first + 2: 3} == {index: attempts for index, (_, attempts) in a.requeued.items()}
    assert (False, True, False) == (a.paused, b.paused, state.paused)


def test_a_stop_ends_the_import_after_a_batch(tmp_path: Path) -> None:
    """A stop raises ImportStopped after one batch, so nsqd need not wait for a long queue."""
    GoQueue(tmp_path, "clicks").put(*[b"x"] * (BATCH_COUNT + 1)).close()
    topic = survey(RealDisk(), str(tmp_path)).topics["clicks"]
    target, tally = target_in(tmp_path / "t-clicks"), Tally(0, CLOCK.now, lambda: True)

    with pytest.raises(ImportStopped):
        import_topic(RealDisk(), str(tmp_path), topic, target, tally)

    assert BATCH_COUNT == tally.messages
    target.close()
