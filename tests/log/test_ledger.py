"""The ledger: its state survives restarts, crashes, damage and full disks."""

import errno
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.log.block_file import DATA_START
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.records import ChannelState, RecordKind, TopicState
from sparq.testing import Fault, MemoryDisk, PowerCut
from tests.log.ledgers import DIRECTORY, checkpoint, finished, settle


class Model:
    """Channels as sets of indexes: slow and obviously correct."""

    def __init__(self) -> None:
        self.mark: int | None = None
        self.paused = False
        self.starts: dict[str, int] = {}
        self.done: dict[str, set[int]] = {}
        self.requeued: dict[str, dict[int, tuple[int, int]]] = {}
        self.channel_paused: dict[str, bool] = {}

    def created(self, name: str, start: int) -> None:
        self.starts[name], self.done[name], self.requeued[name] = start, set(), {}
        self.channel_paused[name] = False

    def deleted(self, name: str) -> None:
        self.starts.pop(name, None)
        self.done.pop(name, None)
        self.requeued.pop(name, None)
        self.channel_paused.pop(name, None)

    def finished(self, name: str, first: int, end: int) -> None:
        self.done[name].update(range(first, end))
        for index in range(first, end):
            self.requeued[name].pop(index, None)

    def seek(self, name: str, index: int) -> None:
        paused = self.channel_paused[name]
        self.created(name, index)
        self.channel_paused[name] = paused

    def equals(self, state: TopicState) -> None:
        assert (state.mark, state.paused) == (self.mark, self.paused)
        assert state.channels.keys() == self.starts.keys()
        for name, channel in state.channels.items():
            start = self.starts[name]
            below = set(range(start, channel.start))
            kept = {i for first, end in channel.finished for i in range(first, end)}
            assert {i for i in self.done[name] if i >= start} == below | kept
            assert channel.requeued == self.requeued[name]
            assert channel.paused == self.channel_paused[name]
            assert channel.cursor >= channel.start
            edges = [edge for pair in channel.finished for edge in pair]
            assert edges == sorted(set(edges))
            assert not edges or edges[0] > channel.start


NAMES = ("archive", "metrics")
Step = tuple[str, str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["created", "deleted", "finished", "requeued", "voided", "seek", "paused", "mark"]
            + ["finished"] * 6
        ),
        st.sampled_from(NAMES),
        st.integers(0, 40),
        st.integers(0, 12),
    ),
    max_size=40,
)


def apply(ledger: Ledger, model: Model, step: Step) -> None:
    """Apply a step to the ledger and to the model."""
    kind, name, index, count = step
    if kind not in ("created", "mark") and name not in model.starts:
        kind = "created"
    if kind == "created":
        ledger.note(RecordKind.CREATED, name, [index])
        model.created(name, index)
    elif kind == "deleted":
        ledger.note(RecordKind.DELETED, name)
        model.deleted(name)
    elif kind in ("finished", "voided"):
        firsts, ends = [index, index + 20], [index + count, index + 20 + count]
        ledger.note(RecordKind[kind.upper()], name, firsts, ends)
        model.finished(name, index, index + count)
        model.finished(name, index + 20, index + 20 + count)
    elif kind == "requeued":
        fresh = [i for i in range(index, index + count) if i not in model.done[name]]
        ledger.note(RecordKind.REQUEUED, name, fresh, [i * 10 for i in fresh], [count] * len(fresh))
        model.requeued[name].update({i: (i * 10, count) for i in fresh})
    elif kind == "seek":
        ledger.note(RecordKind.SEEK, name, [index])
        model.seek(name, index)
    elif kind == "paused":
        flag = count % 2 == 0
        ledger.note(RecordKind.PAUSED, name if index % 2 else "", flag=flag)
        if index % 2:
            model.channel_paused[name] = flag
        else:
            model.paused = flag
    else:
        ledger.note(RecordKind.MARK, "", [index])
        model.mark = index


@given(steps=steps, seed=st.integers(0, 1 << 20))
def test_replay_equals_a_model(steps: list[Step], seed: int) -> None:
    """A ledger flushed, checkpointed and reopened at random has the state of plain sets."""
    chance = random.Random(seed)
    disk, model = MemoryDisk(), Model()
    ledger, state = Ledger.open(disk, DIRECTORY)
    for step in steps:
        apply(ledger, model, step)
        what = chance.random()
        if what < 0.3:
            settle(ledger)
        elif what < 0.4:
            ledger.flush()
            ledger.close()
            ledger, state = Ledger.open(disk, DIRECTORY)
            model.equals(state)
        elif what < 0.5:
            ledger.flush()
            _, snapshot = Ledger.open(disk, DIRECTORY)
            assert checkpoint(ledger, snapshot) is None
    settle(ledger)
    ledger.close()

    ledger, state = Ledger.open(disk.crash(seed), DIRECTORY)

    model.equals(state)
    assert ledger.damage == []


def run(ledger: Ledger, acknowledged: list[int]) -> None:
    """Finish 30 messages one by one, each synced; a checkpoint after ten, or when one is due."""
    ledger.note(RecordKind.CREATED, "c", [0])
    for index in range(30):
        ledger.note(RecordKind.FINISHED, "c", [index * 2], [index * 2 + 1])
        settle(ledger)
        if ledger.synced_mark == ledger.appended_mark:
            acknowledged.append(index * 2)
        if index % 10 == 9 or ledger.wants_checkpoint:
            ranges = [(k * 2, k * 2 + 1) for k in range(1, index + 1)]
            checkpoint(ledger, TopicState(None, False, {"c": ChannelState(1, 1, ranges)}))


def operations() -> int:
    disk = MemoryDisk()
    ledger, _ = Ledger.open(disk, DIRECTORY)
    run(ledger, [])
    return disk.count


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_power_cut_at_every_operation(part: float) -> None:
    """FINs synced before a power cut are known after it, at whichever operation it occurs."""
    for at in range(1, operations() + 1):
        disk = MemoryDisk()
        disk.fail(Fault(at, None, part=part))
        acknowledged: list[int] = []
        with pytest.raises(PowerCut):
            run(Ledger.open(disk, DIRECTORY)[0], acknowledged)
        for seed in range(2):
            after = disk.crash(seed)
            ledger, state = Ledger.open(after, DIRECTORY)
            assert set(acknowledged) <= finished(state) <= set(range(0, 60, 2))
            ledger.note(RecordKind.FINISHED, "c", [100], [101])
            settle(ledger)
            again = Ledger.open(after.crash(seed), DIRECTORY)[1]
            assert finished(state) | {100} == finished(again)


CHANGES = frozenset({"write", "sync", "create", "truncate", "syncdir", "unlink", "rename"})


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failure_at_every_operation(number: int, times: int) -> None:
    """After an error at any operation no acknowledged FIN is lost.

    A failed write keeps its records in memory; a failed sync causes a checkpoint.
    """
    for at in range(1, operations() + 1):
        disk = MemoryDisk()
        disk.fail(Fault(at, number, CHANGES, times, 0.5))
        try:
            ledger, _ = Ledger.open(disk, DIRECTORY)
        except DiskError:
            continue
        acknowledged: list[int] = []
        try:
            run(ledger, acknowledged)
        except DiskError:
            # The caller tries again later, with all its earlier records.
            disk.fault = None
            settle(ledger)
        disk.fault = None
        known = finished(Ledger.open(disk, DIRECTORY)[1])
        after = Ledger.open(disk.crash(at), DIRECTORY)[1]
        assert set(acknowledged) <= finished(after) <= known


def test_failed_sync_is_repaired_by_a_checkpoint(disk: MemoryDisk, ledger: Ledger) -> None:
    """After a failed sync nothing counts as synced until a checkpoint has stored it.

    A second sync could succeed without having written the data.
    """
    ledger.note(RecordKind.CREATED, "c", [5])
    ledger.flush()
    disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    task = ledger.sync_task()
    assert task is not None
    task.run()
    ledger.finish(task)

    assert task.error is not None
    assert ledger.sync_task() is None
    assert (ledger.wants_checkpoint, ledger.synced_mark) == (True, 0)

    state = TopicState(None, False, {"c": ChannelState(5, 5)})
    assert checkpoint(ledger, state) is None
    assert (ledger.wants_checkpoint, ledger.synced_mark) == (False, 1)
    assert Ledger.open(disk.crash(1), DIRECTORY)[1].channels == state.channels


def test_records_noted_during_a_checkpoint_follow_it(disk: MemoryDisk, ledger: Ledger) -> None:
    """Records added while a checkpoint is written are not lost."""
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    task = ledger.checkpoint_task(TopicState(None, False, {"c": ChannelState(0, 0)}))
    assert task is not None
    assert ledger.checkpoint_task(TopicState()) is None
    ledger.note(RecordKind.FINISHED, "c", [3], [4])
    settle(ledger)
    assert ledger.synced_mark == ledger.appended_mark
    assert finished(Ledger.open(disk.crash(3), DIRECTORY)[1]) == {3}

    task.run()
    ledger.finish(task)

    assert finished(Ledger.open(disk.crash(2), DIRECTORY)[1]) == {3}
    assert [path.rpartition("/")[2] for path in disk.paths()] == [
        "checkpoint-00000001",
        "ledger-00000001",
    ]


def test_checkpoint_keeps_everything(disk: MemoryDisk, ledger: Ledger) -> None:
    """A checkpoint keeps every field of a state."""
    state = TopicState(
        mark=900,
        paused=True,
        channels={
            "a": ChannelState(
                10, 70, [(20, 30), (40, 41)], {15: (123, 4), 35: (0, 1)}, True, kept=7
            ),
            "b": ChannelState(0, 0),
        },
    )
    assert checkpoint(ledger, state) is None
    log_id = ledger.log_id
    ledger.close()

    again, found = Ledger.open(disk, DIRECTORY)

    assert found == TopicState(state.mark, state.paused, state.channels, highest_index=899)
    assert again.log_id == log_id


def test_large_ledger_wants_a_checkpoint(disk: MemoryDisk, ledger: Ledger) -> None:
    """A ledger wants a checkpoint when it is large, whatever its age.

    Otherwise reading it would take too long.
    """
    ledger.note(RecordKind.CREATED, "c", [0])
    firsts = list(range(0, 600_000, 2))
    ledger.flush()
    assert not ledger.wants_checkpoint
    ledger.note(RecordKind.FINISHED, "c", firsts, [first + 1 for first in firsts])
    ledger.flush()

    assert ledger.wants_checkpoint
    assert checkpoint(ledger, TopicState(600_000, False, {"c": ChannelState(0, 0)})) is None
    assert not ledger.wants_checkpoint
    assert ledger.size_bytes == DATA_START


def test_a_channels_creation_is_written_twice() -> None:
    """A channel's creation and a checkpoint are written twice.

    One damaged block does not lose the channel, and is reported.
    """
    for checkpointed in (False, True):
        disk = MemoryDisk()
        ledger, _ = Ledger.open(disk, DIRECTORY)
        ledger.note(RecordKind.CREATED, "c", [5])
        ledger.flush()
        if checkpointed:
            task = ledger.checkpoint_task(TopicState(channels={"c": ChannelState(5, 5)}))
            assert task is not None
            task.run()
            ledger.finish(task)
        path = next(path for path in disk.paths() if ("checkpoint" in path) is checkpointed)
        whole = bytes(disk.data(path))
        assert whole.count(b"SPQL") == 2
        for at in (whole.index(b"SPQL") + 20, whole.rindex(b"SPQL") + 20):
            disk.data(path)[:] = whole
            disk.data(path)[at] ^= 1

            again, state = Ledger.open(disk, DIRECTORY)

            assert state.channels == {"c": ChannelState(5, 5)}
            assert len(again.damage) == 1


def test_records_of_a_newer_version_are_reported(disk: MemoryDisk, ledger: Ledger) -> None:
    """Records of an unknown kind are skipped and reported."""
    ledger.note(RecordKind.CREATED, "c", [3])
    ledger._parts.append(bytes([99, 1, 0, 0, 4, 0, 0, 0]) + b"cabc")
    ledger._parts.append(bytes([98, 0, 0, 0, 1, 0, 0, 0]) + b"x")
    ledger.note(RecordKind.FINISHED, "c", [3], [4])
    ledger.flush()

    again, state = Ledger.open(disk, DIRECTORY)

    assert again.damage == [f"{DIRECTORY}: 2 records of a newer version skipped"]
    assert state.channels["c"].start == 4


def test_channel_whose_creation_was_lost_starts_at_index_0(
    disk: MemoryDisk, ledger: Ledger
) -> None:
    """A channel whose creation record is lost starts at index 0.

    Messages may be delivered twice, but none is lost.
    """
    ledger.note(RecordKind.FINISHED, "c", [7], [9])
    ledger.note(RecordKind.CURSOR, "c", [8])
    ledger.flush()

    state = Ledger.open(disk, DIRECTORY)[1]

    assert state.channels == {"c": ChannelState(0, 8, [(7, 9)])}
    assert state.highest_index == 8


def test_files_of_an_interrupted_checkpoint_are_deleted(disk: MemoryDisk, ledger: Ledger) -> None:
    """The files of an interrupted checkpoint are deleted at the next start.

    It may be interrupted before or after its rename.
    """
    ledger.note(RecordKind.CREATED, "c", [3])
    ledger.flush()
    disk.fail(Fault(1, errno.EIO, frozenset({"unlink"})))
    assert checkpoint(ledger, TopicState(None, False, {"c": ChannelState(3, 3)})) is None
    ledger.close()
    disk.fault = None
    disk.create(f"{DIRECTORY}/checkpoint-00000002.tmp")
    assert len(disk.paths()) == 4

    state = Ledger.open(disk, DIRECTORY)[1]

    assert state.channels == {"c": ChannelState(3, 3)}
    assert len(disk.paths()) == 2


def test_after_a_failed_checkpoint_the_next_one_waits_for_64_flushes(monkeypatch: Any) -> None:
    """After a failed checkpoint the next one waits for 64 more flushes."""
    disk = MemoryDisk()
    monkeypatch.setattr("sparq.log.ledger.CHECKPOINT_BYTES", 0)
    ledger, _ = Ledger.open(disk, DIRECTORY)
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    assert ledger.wants_checkpoint
    disk.fail(Fault(1, errno.ENOSPC, frozenset({"create"}), times=2))
    with pytest.raises(DiskError):
        ledger.checkpoint_task(TopicState())
    for _ in range(64):
        assert not ledger.wants_checkpoint
        ledger.note(RecordKind.CURSOR, "c", [1])
        ledger.flush()
    assert ledger.wants_checkpoint
