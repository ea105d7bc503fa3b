"""Damage costs what it touches, is reported, and never gives a wrong body (P5, P6)."""

import errno
import random

import pytest

from sparq.log.log import Log
from sparq.log.reading import Damage
from sparq.log.segment import COPY_OFFSET, DATA_START
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.conversations import DIRECTORY, commit, open_log, publish, read_all

BATCHES = 6


def small_log(disk: MemoryDisk, clock: ManualClock) -> dict[int, bytes]:
    """A stopped log of one small file; returns its messages."""
    log = open_log(disk, clock)
    messages: dict[int, bytes] = {}
    for number in range(BATCHES):
        bodies = [b"%d-%d" % (number, k) for k in range(2)]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
        clock.advance(1_000_000)
    log.close()
    return messages


def the_path(disk: MemoryDisk) -> str:
    (path,) = disk.paths()
    return path


def reported(log: Log) -> bool:
    return bool(log.damage) or log.torn_bytes > 0


def test_every_flipped_byte_costs_one_batch_and_is_reported() -> None:
    """For every byte of a segment: no wrong body, at most one batch lost, and never silently."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    data = disk.data(the_path(disk))
    costs = set()
    for at in range(len(data)):
        if 256 < at < COPY_OFFSET or COPY_OFFSET + 256 < at < DATA_START:
            continue  # zeros between the two headers
        data[at] ^= 1 << (at % 8)
        log = open_log(disk, clock)
        found = read_all(log)
        data[at] ^= 1 << (at % 8)
        assert found.items() <= messages.items()
        lost = messages.keys() - found.keys()
        costs.add(len(lost))
        assert len(lost) in (0, 2)
        assert reported(log) == bool(lost)
        if log.damage:
            assert [(d.first, d.end, d.messages) for d in log.damage] == [
                (min(lost), max(lost) + 1, 2)
            ]
        log.close()
    assert costs == {0, 2}


def test_damage_found_while_running() -> None:
    """A byte that goes bad after recovery is found when its batch is read, and costs only that."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=5_500)
    messages: dict[int, bytes] = {}
    for number in range(40):
        bodies = [b"%d-%d" % (number, k) * 9 for k in range(2)]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
    log.close()
    paths = disk.paths()
    assert len(paths) > 3
    log = open_log(disk, clock)
    disk.data(paths[0])[DATA_START + 150] ^= 1

    found = read_all(log)

    lost = messages.keys() - found.keys()
    assert lost == set(sorted(messages)[:2])
    assert found.items() <= messages.items()
    first = min(messages)
    assert [(d.first, d.end, d.messages, d.path) for d in log.damage] == [
        (first, first + 2, 2, paths[0])
    ]
    assert (log.first_index, log.first_ordinal) == (first + 2, 2)
    assert log.messages_between(0, log.written_end) == 78


def test_damaged_file_header_is_read_from_its_copy() -> None:
    """One bad page at the front of a file costs no message; two cost the file, and are reported."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    data = disk.data(the_path(disk))

    data[:512] = bytes(512)
    assert read_all(open_log(disk, clock)) == messages

    data[COPY_OFFSET : COPY_OFFSET + 16] = bytes(16)
    log = open_log(disk, clock)
    assert read_all(log) == {}
    assert [damage.reason for damage in log.damage] == ["no readable file header"]
    assert log.end_index > max(messages)


@pytest.mark.parametrize("at", [0, COPY_OFFSET])
def test_header_of_another_file_is_not_believed(at: int) -> None:
    """A page that belongs to another file of the log costs no more than what lay there."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=5_500)
    messages = {publish(log, [b"%d" % k * 60], clock): b"%d" % k * 60 for k in range(30)}
    log.close()
    one, other = disk.paths()[:2]
    disk.data(one)[at : at + 128] = disk.data(other)[at : at + 128]

    log = open_log(disk, clock)

    assert (read_all(log), log.damage) == (messages, [])


@pytest.mark.parametrize("size", [0, 100, DATA_START, DATA_START + 9])
def test_file_that_lost_all_is_told_by_the_next(size: int) -> None:
    """A file cut in its head looks like one that was being made, but a later file names it."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=5_500)
    messages = {publish(log, [b"%d" % k * 60], clock): b"%d" % k * 60 for k in range(30)}
    log.close()
    path = disk.paths()[1]
    (gone,) = [s for s in log.segments() if s.path == path]
    data = disk.data(path)
    data[:COPY_OFFSET] = bytes(COPY_OFFSET)
    data[COPY_OFFSET:DATA_START] = bytes(DATA_START - COPY_OFFSET)
    del data[size:]

    log = open_log(disk, clock)

    kept = {i: body for i, body in messages.items() if not gone.first_index <= i < gone.end_index}
    assert read_all(log) == kept
    assert [(d.first, d.end, d.messages, d.path) for d in log.damage] == [
        (gone.first_index, gone.end_index, gone.messages, path)
    ]


def test_lost_end_of_an_older_file_is_told_by_the_next() -> None:
    """A file that lost its end: the next one's base ordinal says how many messages are missing."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    path = the_path(disk)
    log = open_log(disk, clock)
    later = publish(log, [b"later"], clock)
    log.close()
    del disk.data(path)[-100:]

    log = open_log(disk, clock)

    last = max(messages)
    assert read_all(log) == {**{i: messages[i] for i in sorted(messages)[:-2]}, later: b"later"}
    assert [(d.first, d.end, d.messages) for d in log.damage] == [(last - 1, later, 2)]
    assert log.ordinal_at(later) == 12
    assert log.ordinal_at(last - 1) == 10
    assert log.ordinal_at(last) == 11


def test_dropped_file_is_not_taken_for_damage() -> None:
    """A gap that trimming left is no damage, though ordinals are missing."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=5_000)
    for number in range(12):
        publish(log, [b"%d" % number * 50], clock)
    log.drop(log.segments()[1]).run()
    log.close()

    assert open_log(disk, clock).damage == []


@pytest.mark.parametrize("seed", range(40))
def test_random_damage(seed: int) -> None:
    """Zeroed sectors and pages, cuts and noise over several files: nothing made up or silent."""
    chance = random.Random(seed)
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=12_000)
    messages: dict[int, bytes] = {}
    for _ in range(60):
        bodies = [chance.randbytes(chance.randint(0, 400)) for _ in range(chance.randint(1, 4))]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
    log.close()
    path = chance.choice(disk.paths())
    data = disk.data(path)
    for _ in range(chance.randint(1, 3)):
        size = chance.choice([1, 8, 512, 4096])
        at = chance.randrange(DATA_START, len(data)) // size * size
        at = max(at, DATA_START)
        end = min(at + size, len(data))
        data[at:end] = bytes(end - at) if chance.random() < 0.5 else chance.randbytes(end - at)
    if chance.random() < 0.2:
        del data[chance.randrange(DATA_START, len(data)) :]

    log = open_log(disk, clock)
    found = read_all(log)

    assert found.items() <= messages.items()
    lost = messages.keys() - found.keys()
    if lost:
        assert reported(log)
        in_damage = {i for d in log.damage for i in lost if d.first <= i < d.end}
        assert in_damage == lost or log.torn_bytes
    fresh = publish(log, [b"after"], clock)
    assert read_all(log) == {**found, fresh: b"after"}


def test_body_that_holds_a_batch_is_not_taken_for_one() -> None:
    """Resync: a published copy of the file's own batches stays a body, wherever it lies."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock)
    first = publish(log, [b"honest"], clock)
    (path,) = disk.paths()
    forged = bytes(disk.data(path)[DATA_START:])
    for shift in range(8):
        publish(log, [bytes(shift) + forged + bytes(8 - shift)], clock)
    end = publish(log, [b"end"], clock)
    messages = read_all(log)
    log.close()
    at = disk.data(path).index(b"SPQB", DATA_START + 8)
    for _ in range(8):
        # Each header of a batch that carries the forged one goes bad: the scan must resync.
        disk.data(path)[at + 40] ^= 0xFF
        size = int.from_bytes(disk.data(path)[at + 68 : at + 72], "little")
        at += size

    log = open_log(disk, clock)

    assert read_all(log) == {first: b"honest", end: b"end"}
    assert [(d.first, d.end, d.messages) for d in log.damage] == [(first + 1, end, 8)]
    assert len(messages) == 10


def test_files_of_another_log_are_left_alone() -> None:
    """A segment that strayed into the folder is reported, and never delivered."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    stray = open_log(disk, clock, "/data/topics/t-other")
    clock.advance(1_000_000_000)
    publish(stray, [b"not ours"], clock)
    stray.close()
    strayed = next(path for path in disk.paths() if "other" in path)
    clock.advance(1_000_000_000)
    log = open_log(disk, clock)
    log_id = log.log_id
    ours = publish(log, [b"ours"], clock)
    log.close()
    disk.rename(strayed, f"{DIRECTORY}/{strayed.rpartition('/')[2]}")

    log = open_log(disk, clock)

    assert log.log_id == log_id
    assert read_all(log) == {**messages, ours: b"ours"}
    assert [damage.reason for damage in log.damage] == ["file of another log"]


def test_swapped_names_do_no_harm() -> None:
    """A file is what its header says, whatever its name."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=5_000)
    messages = {publish(log, [b"%d" % k * 60], clock): b"%d" % k * 60 for k in range(9)}
    log.close()
    one, two = disk.paths()[:2]
    for old, new in [(one, "/data/x"), (two, one), ("/data/x", two)]:
        disk.rename(old, new)

    assert read_all(open_log(disk, clock)) == messages


def test_unreadable_page_costs_its_batches() -> None:
    """EIO on a read costs what is on the page, not the log."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    log = open_log(disk, clock)
    disk.fail(Fault(2, errno.EIO, frozenset({"read"}), times=1_000))
    read = log.load(min(messages))
    read.run()
    disk.fault = None
    log.store(read)

    assert read.error is None
    assert [(d.first, d.end) for d in log.damage] == [(min(messages), max(messages) + 1)]
    assert log.next_stored(0) == log.written_end
    later = publish(log, [b"goes on"], clock)
    assert read_all(log) == {later: b"goes on"}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_passing_error_of_a_read_costs_nothing(times: int) -> None:
    """The whole read fails, then its page once or twice: all is there, at a start as well."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=times))
    log = open_log(disk, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=times))
    read = log.load(min(messages))
    read.run()
    log.store(read)

    assert not log.damage
    assert read_all(log) == messages


def test_read_that_fails_is_no_damage() -> None:
    """Where a file cannot even be opened, nothing is written off: the next try may succeed."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    log = open_log(disk, clock)
    disk.fail(Fault(1, errno.EMFILE, frozenset({"open"})))
    read = log.load(min(messages))
    read.run()
    log.store(read)

    assert read.error is not None
    assert (log.damage, read_all(log)) == ([], messages)


def test_range_read_counts_what_is_lost() -> None:
    """A Spark read over damage gets the rest, and how many messages are missing."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    first, end = min(messages), max(messages) + 1
    log = open_log(disk, clock)
    data = disk.data(the_path(disk))
    at = data.index(b"SPQB", DATA_START + 8)
    data[at + 90] ^= 1

    read = log.range_read(first + 1, end, 1 << 20)
    read.run()

    assert (read.error, read.next_index, read.lost) == (None, end, 2)
    assert len(read.batches) == 2


def test_damage_in_words() -> None:
    """An operator reads where, what and how much."""
    damage = Damage(5, 9, 4, "/data/x.log", 4608, 200, "damaged batch")

    assert str(damage) == (
        "/data/x.log: damaged batch, bytes 4608 to 4808, indexes 5 to 9, 4 messages lost"
    )


def test_torn_tail_is_reported_once_and_nothing_is_cut() -> None:
    """P6: bytes of an unfinished batch are reported, left in the file, and never come back."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    path = the_path(disk)
    disk.data(path).extend(b"SPQB" + b"x" * 60)
    size = len(disk.data(path))

    log = open_log(disk, clock)
    later = publish(log, [b"later"], clock)
    log.close()

    assert log.torn_bytes == 64
    assert log.damage == []
    assert len(disk.data(path)) == size
    again = open_log(disk, clock)
    assert (again.torn_bytes, again.damage) == (0, [])
    assert read_all(again) == {**messages, later: b"later"}


def test_torn_payload_behind_a_whole_header() -> None:
    """A crash may leave a header and not its payload: such a batch was never acknowledged."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    data = disk.data(the_path(disk))
    data[-40:] = bytes(40)

    log = open_log(disk, clock)

    kept = dict(sorted(messages.items())[:-2])
    assert (read_all(log), log.damage) == (kept, [])
    assert log.torn_bytes > 0
    assert log.end_ordinal == 10


def test_deferred_publishes_are_found_again() -> None:
    """P4: due times come back from the batches that hold them, not from damaged ones."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock)
    first = publish(log, [b"now"], clock)
    commit(log, [b"a", b"later", b"b", b"much later"], clock, [(1, 500), (3, 900)])
    commit(log, [b"last"], clock, [(0, 100)])
    log.close()
    path = the_path(disk)

    assert open_log(disk, clock).due_entries == [
        (first + 2, 500),
        (first + 4, 900),
        (first + 5, 100),
    ]
    disk.data(path)[disk.data(path).index(b"much later")] ^= 1
    assert open_log(disk, clock).due_entries == [(first + 5, 100)]


def test_what_was_torn_once_never_counts_again() -> None:
    """The run behind a torn batch gives its ordinal anew; later ones must not count both."""
    disk, clock = MemoryDisk(), ManualClock()
    messages = small_log(disk, clock)
    path = the_path(disk)
    disk.data(path)[-20] ^= 1  # the last batch's payload; its header stays whole
    second = open_log(disk, clock)
    assert second.torn_bytes > 0
    torn = sorted(messages)[-2:]
    messages[publish(second, [b"next"], clock)] = b"next"
    second.close()

    third = open_log(disk, clock)

    assert third.end_ordinal == len(messages) - 2
    assert third.messages_between(torn[0], torn[1] + 1) == 0
    assert third.ordinal_at(torn[1] + 1) == len(messages) - 3
    assert read_all(third) == {at: body for at, body in messages.items() if at not in torn}
    assert third.damage == []
