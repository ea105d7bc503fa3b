"""Commits of several topics that share a journal's sync survive errors and power cuts."""

import errno
import random

import pytest

from sparq.log import journal as journals
from sparq.log import segment
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.journal import Journal
from sparq.log.log import Log
from sparq.protocol.frames import BodySlices
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.log.log_operations import commit, open_log, read_all

PATH = "/data"
NAMES = ("a", "b", "c")
ROUNDS = 18
CHANGES = frozenset({"write", "sync", "create", "truncate", "syncdir", "unlink"})


def folder(name: str) -> str:
    """The topic's directory."""
    return f"{PATH}/topics/t-{name}"


class JournalHarness:
    """Logs that share a journal, with their attempted and acknowledged messages."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.attempted: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.logs: dict[str, Log] = {}
        self.journal = Journal(disk, PATH)

    def start(self) -> journals.WriteBack:
        """Start as nsqd does."""
        self.journal = Journal(self.disk, PATH)
        self.journal.share_min = 2
        self.journal.file_bytes = 2_500
        put_back = journals.recover(self.disk, PATH, self.journal)
        for name in NAMES:
            self.logs[name] = open_log(
                self.disk, self.clock, folder(name), max_bytes_per_file=9_000
            )
        return put_back

    def publish(self, names: tuple[str, ...] = NAMES, *, size: int = 100) -> list[Commit]:
        """Publish one message to each of these topics, so that their commits can share a sync."""
        self.clock.advance(1_000_000)
        commits = {}
        for name in names:
            log = self.logs[name]
            bodies = [f"{name} {log.end_index}".encode() + b"." * size]
            self.attempted[name][log.end_index] = bodies[0]
            commits[name] = log.begin([BodySlices.of(bodies)], self.clock.now())
        ran = [task for group in self.journal.run(list(commits.values())) for task in group]
        assert sorted(map(id, ran)) == sorted(map(id, commits.values()))
        for name, done in commits.items():
            self.logs[name].finish(done)
            if done.error is None:
                index = done.first_index
                self.acknowledged[name][index] = self.attempted[name][index]
        return list(commits.values())

    def checkpoint(self) -> None:
        """Checkpoint as the broker does after a new journal was begun."""
        limit = self.journal.number - 1
        for log in self.logs.values():
            if 0 < log.unsynced.journal <= limit:
                task = log.sync_task()
                assert task is not None
                task.run()
                log.finish(task)
        if not any(0 < log.unsynced.journal <= limit for log in self.logs.values()):
            self.journal.clean(limit)

    def check(self) -> None:
        """Check that no acknowledged message is missing and each one found was published."""
        for name, log in self.logs.items():
            found = read_all(log)
            assert self.acknowledged[name].items() <= found.items()
            assert found.items() <= self.attempted[name].items()
            assert log.end_index > max(found, default=0)
            assert [damage for damage in log.damage if damage.messages] == []


@pytest.fixture
def harness() -> JournalHarness:
    """Three logs, each with one segment."""
    harness = JournalHarness(MemoryDisk(), ManualClock())
    harness.disk.make_directory(PATH)
    harness.disk.sync_directory("")
    harness.start()
    for _ in range(2):
        for name in NAMES:
            harness.publish((name,))
    return harness


def syncs(disk: MemoryDisk, since: int) -> list[str]:
    """The files synced since this position in the trace."""
    return [path for operation, path in disk.trace[since:] if operation == "sync"]


def test_waiting_commits_share_one_sync(harness: JournalHarness) -> None:
    """Waiting commits share one sync of the journal.

    Their messages count as synced, though their segments are not.
    """
    harness.publish()
    since = len(harness.disk.trace)

    commits = harness.publish()

    assert syncs(harness.disk, since) == [f"{PATH}/journal-00000001"]
    assert [done.journal for done in commits] == [1, 1, 1]
    for log in harness.logs.values():
        assert log.synced_end == log.written_end
        assert (log.unsynced.count, log.unsynced.size_bytes, log.unsynced.journal) == (0, 0, 1)
        assert not log.sync_due(harness.clock.now())


def test_fewer_or_larger_commits_sync_their_own_files(harness: JournalHarness) -> None:
    """Few or large commits sync their own segments and use no journal."""
    harness.journal.share_min = 4
    assert {done.journal for done in harness.publish()} == {0}
    harness.journal.share_min = 3
    assert {done.journal for done in harness.publish(size=600_000)} == {0}
    assert not harness.disk.exists(f"{PATH}/journal-00000001")


@pytest.mark.parametrize("seed", range(6))
def test_power_cut_at_any_operation(seed: int) -> None:
    """P1: after a power cut at any operation all acknowledged messages are there.

    A second power cut interrupts the start after the first one.
    """
    at, cut = 0, True
    chance = random.Random(seed)
    while cut:
        at += 1
        harness = JournalHarness(MemoryDisk(), ManualClock())
        harness.disk.make_directory(PATH)
        harness.disk.sync_directory("")
        harness.disk.fail(Fault(at, None, part=chance.random()))
        cut = False
        try:
            publish_and_checkpoint(harness)
        except PowerCut:
            cut = True
        harness.disk = harness.disk.crash(chance.getrandbits(32))
        harness.disk.fail(Fault(chance.randint(1, 40), None, part=chance.random()))
        try:
            harness.start()
        except PowerCut:
            harness.disk = harness.disk.crash(chance.getrandbits(32))
            harness.start()
        harness.disk.fault = None
        harness.check()
        harness.publish()
        harness.check()
    assert at > 100


def publish_and_checkpoint(harness: JournalHarness) -> None:
    """Run single publishes, shared ones and checkpoints."""
    harness.start()
    for number in range(ROUNDS):
        harness.publish(NAMES[number % 3 :])
        if number % 3 == 2:
            harness.checkpoint()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_error_at_any_operation(number: int, times: int) -> None:
    """P3: after an error at any operation no acknowledged message is lost.

    Later publishes succeed, and a power cut afterwards loses nothing.
    """
    at, failed = 0, True
    while failed:
        at += 1
        harness = JournalHarness(MemoryDisk(), ManualClock())
        harness.disk.make_directory(PATH)
        harness.disk.sync_directory("")
        harness.start()
        harness.disk.fail(Fault(at, number, CHANGES, times, part=0.5))
        for step in range(ROUNDS):
            harness.publish(NAMES[step % 3 :])
            if step % 3 == 2:
                harness.checkpoint()
        failed = harness.disk.failed_count > 0
        harness.disk.fault = None
        assert [done.error for done in harness.publish()] == [None] * 3
        harness.check()
        harness.disk = harness.disk.crash(at)
        harness.start()
        harness.check()
    assert at > 60


def test_a_journal_whose_sync_fails_is_abandoned(harness: JournalHarness) -> None:
    """After a journal's sync fails, each segment is synced separately.

    The next commits do not use a journal.
    """
    harness.publish()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))

    commits = harness.publish()

    assert [done.error for done in commits] == [None] * 3
    assert {done.journal for done in commits} == {0}
    assert "synced separately" in commits[0].notes[0]
    assert {log.unsynced.journal for log in harness.logs.values()} == {0}
    assert {done.journal for done in harness.publish()} == {0}


def test_old_journals_are_deleted_when_segments_are_synced(harness: JournalHarness) -> None:
    """Without checkpoints there are at most two journals; then segments are synced separately.

    A checkpoint deletes the old journal, a clean close all of them.
    """
    for _ in range(20):
        harness.publish()
    assert journals.found(harness.disk, PATH) == [1, 2]
    assert {log.unsynced.journal for log in harness.logs.values()} == {0}

    harness.checkpoint()
    assert journals.found(harness.disk, PATH) == [2]
    assert {done.journal for done in harness.publish()} == {3}

    harness.journal.close(is_clean=True)
    assert journals.found(harness.disk, PATH) == []


def test_a_failed_new_segment_does_not_end_the_one_before_it(
    harness: JournalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment that could not be synced or deleted does not end the one before it.

    The journal restores its messages into the earlier segment.
    """
    harness.publish()

    step = harness.disk.step

    def fail(operation: str, path: str) -> None:
        """Fail each unlink, and each sync of a file other than a segment with a header only."""
        if operation == "unlink":
            raise DiskError(operation, path, errno.EIO)
        if operation == "sync":
            is_header = path.endswith(".log") and len(harness.disk.data(path)) <= segment.DATA_START
            if not is_header:
                raise DiskError(operation, path, errno.EIO)
        step(operation, path)

    with monkeypatch.context() as patched:
        patched.setattr(harness.disk, "step", fail)
        assert {done.error is None for done in harness.publish()} == {False}
    for seed in range(8):
        later = JournalHarness(harness.disk.crash(seed), harness.clock)
        later.acknowledged, later.attempted = harness.acknowledged, harness.attempted
        later.start()
        for name, log in later.logs.items():
            assert later.acknowledged[name].items() <= read_all(log).items()


def test_a_topic_that_cannot_be_restored_is_refused_and_its_journal_kept(
    harness: JournalHarness,
) -> None:
    """If a topic's segment cannot be restored, the topic is refused and the journal kept.

    The next start tries again.
    """
    harness.publish()
    harness.disk = harness.disk.crash(1)
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"write"})))
    journal = Journal(harness.disk, PATH)

    put_back = journals.recover(harness.disk, PATH, journal)

    assert list(put_back.refused) == ["topics/t-a"]
    assert journals.found(harness.disk, PATH) == [1]
    journal.close(is_clean=True)
    assert journals.found(harness.disk, PATH) == [1]
    harness.disk.fault = None
    assert harness.start().refused == {}
    harness.check()


def test_nothing_is_restored_to_a_deleted_topic(harness: JournalHarness) -> None:
    """Nothing is restored to a deleted topic, or to a new topic of the same name."""
    harness.publish()
    for name in ("a", "b"):
        for file in harness.disk.listdir(folder(name)):
            harness.disk.unlink(f"{folder(name)}/{file}")
    harness.disk.remove_directory(folder("a"))
    other = open_log(harness.disk, harness.clock, folder("b"))
    commit(other, [b"another log"], harness.clock)

    put_back = journals.recover(harness.disk, PATH, Journal(harness.disk, PATH))

    assert (put_back.refused, put_back.batches) == ({}, 0)
    after = open_log(harness.disk, harness.clock, folder("b"))
    assert list(read_all(after).values()) == [b"another log"]


def test_a_damaged_block_of_a_journal_is_reported(harness: JournalHarness) -> None:
    """A damaged block of a journal is reported, and the other blocks are restored."""
    for _ in range(3):
        harness.publish()
    path = f"{PATH}/journal-00000001"
    data = harness.disk.data(path)
    data[1024 + 60] ^= 1

    put_back = journals.recover(harness.disk, PATH, Journal(harness.disk, PATH))

    assert len(put_back.report) == 1
    assert "damaged bytes" in put_back.report[0]
    assert put_back.refused == {}


def test_an_unreadable_journal_prevents_the_start(harness: JournalHarness) -> None:
    """A journal that cannot be opened prevents the start.

    It may contain acknowledged messages.
    """
    harness.publish()
    harness.disk.fail(Fault(1, errno.EACCES, frozenset({"open"})))
    with pytest.raises(DiskError, match="journal-00000001"):
        journals.recover(harness.disk, PATH, Journal(harness.disk, PATH))
