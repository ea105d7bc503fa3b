"""Commits of several topics that share a sync: kept, whatever fails and whenever the power goes."""

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
    """A topic's."""
    return f"{PATH}/topics/t-{name}"


class House:
    """Logs that share a journal, and what their publishers were told."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.attempted: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        self.logs: dict[str, Log] = {}
        self.journal = Journal(disk, PATH)

    def start(self) -> journals.PutBack:
        """A start of nsqd."""
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
        """One publish to each of these topics, all waiting for the disk together."""
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
        """What the broker does when a new journal has begun."""
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
        """Nothing that was acknowledged is missing, nothing was made up."""
        for name, log in self.logs.items():
            found = read_all(log)
            assert self.acknowledged[name].items() <= found.items()
            assert found.items() <= self.attempted[name].items()
            assert log.end_index > max(found, default=0)
            assert [damage for damage in log.damage if damage.messages] == []


@pytest.fixture
def house() -> House:
    """Three logs with a file each."""
    house = House(MemoryDisk(), ManualClock())
    house.disk.make_directory(PATH)
    house.disk.sync_directory("")
    house.start()
    for _ in range(2):
        for name in NAMES:
            house.publish((name,))
    return house


def syncs(disk: MemoryDisk, since: int) -> list[str]:
    """The files that were synced since then."""
    return [path for operation, path in disk.trace[since:] if operation == "sync"]


def test_commits_that_wait_together_share_one_sync(house: House) -> None:
    """Only the journal is synced; what it has counts as synced, and not as unsynced."""
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
    """A journal is for many small commits."""
    house.journal.share_min = 4
    assert {done.journal for done in house.publish()} == {0}
    house.journal.share_min = 3
    assert {done.journal for done in house.publish(size=600_000)} == {0}
    assert not house.disk.exists(f"{PATH}/journal-00000001")


def test_after_a_power_cut_all_is_put_back(house: House) -> None:
    """Though no file of a topic was synced, and again if that start is cut off, too."""
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
    """P1: what was acknowledged is there, also where the start after it is cut, too."""
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
    """A run: single publishes, shared ones, checkpoints."""
    house.start()
    for number in range(ROUNDS):
        house.publish(NAMES[number % 3 :])
        if number % 3 == 2:
            house.checkpoint()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_error_at_any_operation(number: int, times: int) -> None:
    """P3: who was told OK finds it; later publishes succeed; a kill afterwards loses nothing."""
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
    """Each file is then synced by itself, and the next journal waits a while."""
    house.publish()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))

    commits = house.publish()

    assert [done.error for done in commits] == [None] * 3
    assert {done.journal for done in commits} == {0}
    assert "synced separately" in commits[0].notes[0]
    assert {log.unsynced.journal for log in house.logs.values()} == {0}
    assert {done.journal for done in house.publish()} == {0}


def test_old_journals_go_when_files_are_synced(house: House) -> None:
    """Without a checkpoint there are two at most: then everybody syncs for himself again."""
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
    """From memory: what only a journal had is in a fresh file before the journal goes."""
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
    """Nor can it be deleted; the journal still puts back what it has into the file before."""
    house.publish()

    step = house.disk.step

    def fail(operation: str, path: str) -> None:
        """Only a file that is nothing but its header can be synced, and none be deleted."""
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
    """Nothing is guessed over: the next start tries again."""
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
    """A deleted topic, and one of the same name with other files."""
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
    """The other blocks are put back."""
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
    """It may hold what was acknowledged."""
    house.publish()
    house.disk.fail(Fault(1, errno.EACCES, frozenset({"open"})))
    with pytest.raises(DiskError, match="journal-00000001"):
        journals.recover(house.disk, PATH, Journal(house.disk, PATH))


def test_entries_come_back_as_they_were() -> None:
    """The format, and the names of the files."""
    entries = [
        JournalEntry("topics/t-ä/1.log", 2**64 - 1, 4608, b"\0" * 7),
        JournalEntry("x", 0, 2**40, b""),
    ]
    assert list(decode(memoryview(encode(entries)))) == entries
    names = ("journal-0000000a", "journal-a", "sparq.json", "journal-g0000000")
    assert [number_of(name) for name in names] == [10, None, None, None]
