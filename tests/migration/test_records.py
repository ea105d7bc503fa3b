"""The messages of one data file, written by the tests' own writer (tests/support/go_data.py)."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.migration.records import CHUNK_BYTES
from tests.migration.reading import NAME, numbered, read, various, without
from tests.support.go_data import GoQueue, record


@pytest.mark.parametrize("make", [numbered, various], ids=["one size", "random"])
def test_a_long_file_is_read_in_chunks(tmp_path: Path, make: Callable[[int], list[bytes]]) -> None:
    """Records across the boundaries of read chunks are complete."""
    bodies = make(60_000)
    GoQueue(tmp_path, NAME).put(*bodies).close()

    assert (tmp_path / f"{NAME}.diskqueue.000000.dat").stat().st_size > 2 * CHUNK_BYTES
    assert (bodies, []) == read(tmp_path)


def test_messages_larger_than_a_chunk_are_read(tmp_path: Path) -> None:
    """A message may be larger than a chunk, between small ones and at the end."""
    bodies = [b"a", b"b" * (3 * CHUNK_BYTES), b"c", b"d" * (CHUNK_BYTES - 31), b"e" * CHUNK_BYTES]
    GoQueue(tmp_path, NAME).put(*bodies).close()

    assert (bodies, []) == read(tmp_path)


@pytest.mark.parametrize("first_byte", [0, 1, 0x20], ids=["1970", "1972", "2043"])
def test_messages_with_wrong_timestamps_are_read(tmp_path: Path, first_byte: int) -> None:
    """Messages with timestamps in 1970, 1972 or 2043 are read if no byte is damaged."""
    data = b""
    for number in range(500):
        whole = bytearray(record(b"%d" % number, number))
        whole[4] = first_byte
        data += whole
    (tmp_path / f"{NAME}.diskqueue.000000.dat").write_bytes(data)

    bodies, bad = read(tmp_path)

    assert ([b"%d" % number for number in range(500)], []) == (bodies, bad)


def test_a_body_may_contain_records(tmp_path: Path) -> None:
    """A body that contains records of a queue file, older than the message, is read as a body."""
    dump = b"".join(record(b"inner %d" % number, number) for number in range(-20, 0))
    bodies = [b"first", dump, b"x" + dump + b"y", dump * 3, b"last"]
    GoQueue(tmp_path, NAME).put(*bodies).close()

    assert (bodies, []) == read(tmp_path)


@pytest.mark.parametrize("rest", [1, 3, 4, 5, 15, 29, 31])
def test_only_the_torn_record_is_lost(tmp_path: Path, rest: int) -> None:
    """A torn record at the end is reported with its size; the messages before it are read."""
    queue = GoQueue(tmp_path, NAME).put(*numbered(3))
    with queue.path(0).open("ab") as file:
        file.write(record(b"some body", 4)[:rest])

    bodies, bad = read(tmp_path)

    assert numbered(3) == bodies
    assert [rest] == [piece.size for piece in bad]


def test_zeros_at_the_end_of_a_file_are_reported(tmp_path: Path) -> None:
    """Zeros at the end of a file are reported; all messages before them are read."""
    queue = GoQueue(tmp_path, NAME).put(*various(50))
    with queue.path(0).open("ab") as file:
        file.write(bytes(5_000))

    bodies, bad = read(tmp_path)

    assert various(50) == bodies
    assert [5_000] == [piece.size for piece in bad]


@pytest.mark.parametrize("position", [0, 1, 500, 998, 999])
@pytest.mark.parametrize("length", [None, 0, -1, 26, 50, 100, 0x7FFFFFFF, 0x30303030])
@pytest.mark.parametrize("make", [numbered, various], ids=["one size", "random"])
def test_a_damaged_length_loses_only_its_message(
    tmp_path: Path, make: Callable[[int], list[bytes]], length: int | None, position: int
) -> None:
    """A damaged length costs one message, and its position is reported; all others are read."""
    bodies = make(1_000)
    queue = GoQueue(tmp_path, NAME).put(*bodies).close()
    queue.damage_length(position, length)

    kept, bad = read(tmp_path)

    assert without(bodies, position) == kept
    assert [(str(queue.path(0)), queue.places[position][1])] == [b[:2] for b in bad]


@pytest.mark.parametrize("bit", range(32))
def test_any_flipped_bit_of_a_length_loses_only_its_message(tmp_path: Path, bit: int) -> None:
    """Any flipped bit of a length costs one message, even if the length spans later records."""
    bodies = numbered(4_000, size=34)  # records of 64 bytes: many bits lead to a later record
    queue = GoQueue(tmp_path, NAME).put(*bodies).close()
    queue.damage_length(1_000, (26 + 34) ^ (1 << bit))

    kept, _ = read(tmp_path)

    assert without(bodies, 1_000) == kept


def test_many_damaged_lengths_lose_only_their_messages(tmp_path: Path) -> None:
    """40 random and 3 adjacent damaged lengths, over several chunks, cost only their messages."""
    bodies = various(30_000)
    chance = random.Random(11)
    positions = {*chance.sample(range(30_000), 40), 7_000, 7_001, 7_002}
    queue = GoQueue(tmp_path, NAME).put(*bodies).close()
    for position in positions:
        queue.damage_length(position, chance.randrange(1 << 32))

    kept, bad = read(tmp_path)

    assert without(bodies, *positions) == kept
    assert 38 <= len(bad) <= len(positions)


def test_damage_in_bodies_and_ids_is_not_detected(tmp_path: Path) -> None:
    """Damage in ids and bodies is not detectable: the messages are read."""
    queue = GoQueue(tmp_path, NAME).put(*numbered(50)).close()
    data = bytearray(queue.path(0).read_bytes())
    for place, byte in ((queue.places[10][1] + 20, 0xFF), (queue.places[20][1] + 40, 0x00)):
        data[place] = byte
    queue.path(0).write_bytes(data)

    bodies, bad = read(tmp_path)

    assert without(numbered(50), 20) == without(bodies, 20)
    assert [] == bad


def test_overwritten_bytes_lose_only_the_messages_they_touch(tmp_path: Path) -> None:
    """4096 overwritten bytes, zeros or noise, cost only the messages that they touch."""
    bodies = various(2_000)
    queue = GoQueue(tmp_path, NAME).put(*bodies).close()
    data = queue.path(0).read_bytes()
    for noise in (bytes(4096), random.Random(3).randbytes(4096)):
        queue.path(0).write_bytes(data[:102_400] + noise + data[102_400 + 4096 :])
        spoilt = [
            position
            for position, (_, at) in enumerate(queue.places)
            if at < 102_400 + 4096 and at + 30 + len(bodies[position]) > 102_400
        ]

        kept, bad = read(tmp_path)

        assert 1 == len(bad)
        assert without(bodies, *spoilt) == kept
