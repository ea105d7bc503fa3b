"""Commits of several topics that share a journal's sync survive errors and power cuts."""

import errno
import random

import pytest

from sparq.log import journal as journals
from sparq.log import segment
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.journal import Journal, JournalEntry, decode, encode, number_of
from sparq.log.log import Log
from sparq.protocol.frames import BodySlices
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.log.conversations import commit, open_log, read_all

PATH = "/data"
NAMES = ("a", "b", "c")
ROUNDS = 18
CHANGES = frozenset({"write", "sync", "create", "truncate", "syncdir", "unlink"})


def folder(name: str) -> str:
    """The topic's directory."""
    return f"{PATH}/topics/t-{name}"


class House:
    """Logs that share a journal, with their attempted and acknowledged messages."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.attempted: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.logs: dict[str, Log] = {}
        self.journal = Journal(disk, PATH)

    def start(self) -> journals.PutBack:
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
        ran = [work for group in self.journal.run(list(commits.values())) for work in group]
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
def house() -> House:
    """Three logs, each with one segment."""
    house = House(MemoryDisk(), ManualClock())
    house.disk.make_directory(PATH)
    house.disk.sync_directory("")
    house.start()
    for _ in range(2):
        for name in NAMES:
            house.publish((name,))
    return house


def syncs(disk: MemoryDisk, since: int) -> list[str]:
    """The files synced since this position in the trace."""
    return [path for operation, path in disk.trace[since:] if operation == "sync"]


def test_commits_that_wait_together_share_one_sync(house: House) -> None:
    """Waiting commits share one sync of the journal.

    Their messages count as synced, though their segments are not.
    """
    house.publish()
    since = len(house.disk.trace)

    commits = house.publish()

    assert syncs(house.disk, since) == [f"{PATH}/journal-00000001"]
    assert [done.journal for done in commits] == [1, 1, 1]
    for log in house.logs.values():
        assert log.synced_end == log.written_end
        assert (log.unsynced.count, log.unsynced.size_bytes, log.unsynced.journal) == (0, 0, 1)
        assert not log.sync_due(house.clock.now())


def test_fewer_or_larger_commits_sync_their_own_files(house: House) -> None:
    """Few or large commits sync their own segments and use no journal."""
    house.journal.share_min = 4
    assert {done.journal for done in house.publish()} == {0}
    house.journal.share_min = 3
    assert {done.journal for done in house.publish(size=600_000)} == {0}
    assert not house.disk.exists(f"{PATH}/journal-00000001")


def test_after_a_power_cut_all_is_put_back(house: House) -> None:
    """After a power cut the journal restores all messages, and is deleted."""
    for _ in range(4):
        house.publish()
    for seed in range(20):
        later = House(house.disk.crash(seed), house.clock)
        later.acknowledged, later.attempted = house.acknowledged, house.attempted
        put_back = later.start()
        later.check()
        assert put_back.refused == {}
        assert journals.found(later.disk, PATH) == []


@pytest.mark.parametrize("seed", range(6))
def test_power_cut_at_any_operation(seed: int) -> None:
    """P1: after a power cut at any operation all acknowledged messages are there.

    A second power cut interrupts the start after the first one.
    """
    at, cut = 0, True
    chance = random.Random(seed)
    while cut:
        at += 1
        house = House(MemoryDisk(), ManualClock())
        house.disk.make_directory(PATH)
        house.disk.sync_directory("")
        house.disk.fail(Fault(at, None, part=chance.random()))
        cut = False
        try:
            live(house)
        except PowerCut:
            cut = True
        house.disk = house.disk.crash(chance.getrandbits(32))
        house.disk.fail(Fault(chance.randint(1, 40), None, part=chance.random()))
        try:
            house.start()
        except PowerCut:
            house.disk = house.disk.crash(chance.getrandbits(32))
            house.start()
        house.disk.fault = None
        house.check()
        house.publish()
        house.check()
    assert at > 100


def live(house: House) -> None:
    """Run single publishes, shared ones and checkpoints."""
    house.start()
    for number in range(ROUNDS):
        house.publish(NAMES[number % 3 :])
        if number % 3 == 2:
            house.checkpoint()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_error_at_any_operation(number: int, times: int) -> None:
    """P3: after an error at any operation no acknowledged message is lost.

    Later publishes succeed, and a power cut afterwards loses nothing.
    """
    at, failed = 0, True
    while failed:
        at += 1
        house = House(MemoryDisk(), ManualClock())
        house.disk.make_directory(PATH)
        house.disk.sync_directory("")
        house.start()
        house.disk.fail(Fault(at, number, CHANGES, times, part=0.5))
        for step in range(ROUNDS):
            house.publish(NAMES[step % 3 :])
            if step % 3 == 2:
                house.checkpoint()
        failed = house.disk.failed_count > 0
        house.disk.fault = None
        assert [done.error for done in house.publish()] == [None] * 3
        house.check()
        house.disk = house.disk.crash(at)
        house.start()
        house.check()
    assert at > 60


def test_a_journal_that_fails_is_given_up(house: House) -> None:
    """After a journal's sync fails, each segment is synced separately.

    The next commits do not use a journal.
    """
    house.publish()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))

    commits = house.publish()

    assert [done.error for done in commits] == [None] * 3
    assert {done.journal for done in commits} == {0}
    assert "synced separately" in commits[0].notes[0]
    assert {log.unsynced.journal for log in house.logs.values()} == {0}
    assert {done.journal for done in house.publish()} == {0}


def test_old_journals_go_when_files_are_synced(house: House) -> None:
    """Without checkpoints there are at most two journals; then segments are synced separately.

    A checkpoint deletes the old journal, a clean close all of them.
    """
    for _ in range(20):
        house.publish()
    assert journals.found(house.disk, PATH) == [1, 2]
    assert {log.unsynced.journal for log in house.logs.values()} == {0}

    house.checkpoint()
    assert journals.found(house.disk, PATH) == [2]
    assert {done.journal for done in house.publish()} == {3}

    house.journal.close(is_clean=True)
    assert journals.found(house.disk, PATH) == []


def test_a_file_whose_sync_fails_at_the_checkpoint_is_written_anew(house: House) -> None:
    """If a segment's sync fails at a checkpoint, its messages are written to a new segment.

    They come from memory; only then is the journal deleted.
    """
    while house.journal.number < 2:
        house.publish()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    house.checkpoint()
    house.checkpoint()
    assert journals.found(house.disk, PATH) == [2]
    house.disk = house.disk.crash(3)
    house.start()
    house.check()


def test_a_file_that_did_not_take_over_what_a_journal_has_ends_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment that could not be synced or deleted does not end the one before it.

    The journal restores its messages into the earlier segment.
    """
    house.publish()

    step = house.disk.step

    def fail(operation: str, path: str) -> None:
        """Fail each unlink, and each sync of a file other than a segment with a header only."""
        if operation == "unlink":
            raise DiskError(operation, path, errno.EIO)
        if operation == "sync":
            is_header = path.endswith(".log") and len(house.disk.data(path)) <= segment.DATA_START
            if not is_header:
                raise DiskError(operation, path, errno.EIO)
        step(operation, path)

    with monkeypatch.context() as patched:
        patched.setattr(house.disk, "step", fail)
        assert {done.error is None for done in house.publish()} == {False}
    for seed in range(8):
        later = House(house.disk.crash(seed), house.clock)
        later.acknowledged, later.attempted = house.acknowledged, house.attempted
        later.start()
        for name, log in later.logs.items():
            assert later.acknowledged[name].items() <= read_all(log).items()


def test_a_topic_that_cannot_be_written_is_refused_and_its_journal_kept(house: House) -> None:
    """If a topic's segment cannot be restored, the topic is refused and the journal kept.

    The next start tries again.
    """
    house.publish()
    house.disk = house.disk.crash(1)
    house.disk.fail(Fault(1, errno.EIO, frozenset({"write"})))
    journal = Journal(house.disk, PATH)

    put_back = journals.recover(house.disk, PATH, journal)

    assert list(put_back.refused) == ["topics/t-a"]
    assert journals.found(house.disk, PATH) == [1]
    journal.close(is_clean=True)
    assert journals.found(house.disk, PATH) == [1]
    house.disk.fault = None
    assert house.start().refused == {}
    house.check()


def test_what_was_dropped_since_is_left_alone(house: House) -> None:
    """Nothing is restored to a deleted topic, or to a new topic of the same name."""
    house.publish()
    for name in ("a", "b"):
        for file in house.disk.listdir(folder(name)):
            house.disk.unlink(f"{folder(name)}/{file}")
    house.disk.remove_directory(folder("a"))
    other = open_log(house.disk, house.clock, folder("b"))
    commit(other, [b"another log"], house.clock)

    put_back = journals.recover(house.disk, PATH, Journal(house.disk, PATH))

    assert (put_back.refused, put_back.batches) == ({}, 0)
    after = open_log(house.disk, house.clock, folder("b"))
    assert list(read_all(after).values()) == [b"another log"]


def test_damage_of_a_journal_is_reported_and_costs_a_block(house: House) -> None:
    """A damaged block of a journal is reported, and the other blocks are restored."""
    for _ in range(3):
        house.publish()
    path = f"{PATH}/journal-00000001"
    data = house.disk.data(path)
    data[1024 + 60] ^= 1

    put_back = journals.recover(house.disk, PATH, Journal(house.disk, PATH))

    assert len(put_back.report) == 1
    assert "damaged bytes" in put_back.report[0]
    assert put_back.refused == {}


def test_an_unreadable_journal_stops_the_start(house: House) -> None:
    """A journal that cannot be opened prevents the start.

    It may contain acknowledged messages.
    """
    house.publish()
    house.disk.fail(Fault(1, errno.EACCES, frozenset({"open"})))
    with pytest.raises(DiskError, match="journal-00000001"):
        journals.recover(house.disk, PATH, Journal(house.disk, PATH))


def test_entries_come_back_as_they_were() -> None:
    """Entries are decoded as encoded, and only journal names have a number."""
    entries = [
        JournalEntry("topics/t-ä/1.log", 2**64 - 1, 4608, b"\0" * 7),
        JournalEntry("x", 0, 2**40, b""),
    ]
    assert list(decode(memoryview(encode(entries)))) == entries
    names = ("journal-0000000a", "journal-a", "sparq.json", "journal-g0000000")
    assert [number_of(name) for name in names] == [10, None, None, None]
