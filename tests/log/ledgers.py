"""Helpers for tests of the ledger: flush, sync, checkpoint."""

from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.records import ChannelState, TopicState
from sparq.log.reserve import Purpose

DIRECTORY = "/data/topics/t-clicks"


def settle(ledger: Ledger) -> None:
    """Flush and sync."""
    ledger.flush()
    if (task := ledger.sync_task()) is not None:
        task.run()
        ledger.finish(task)


def checkpoint(
    ledger: Ledger, state: TopicState, purpose: Purpose = Purpose.APPEND
) -> DiskError | None:
    """Run a checkpoint; returns its error, if any."""
    task = ledger.checkpoint_task(state, purpose)
    assert task is not None
    task.run()
    ledger.finish(task)
    return task.error


def finished(state: TopicState) -> set[int]:
    """The indexes that the channel has finished."""
    channel = state.channels.get("c", ChannelState(0, 0))
    ranges = [(0, channel.start), *channel.finished]
    return {index for first, end in ranges for index in range(first, end)}
