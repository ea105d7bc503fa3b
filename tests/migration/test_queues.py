"""The reader of Go's queues, on files of the tests' own writer (tests/support/go_data.py)."""

from pathlib import Path

import pytest

from sparq.migration.queues import GoDataError, go_files, read_queue, survey
from sparq.migration.records import GoRecords
from tests.migration.reading import DISK, NAME, found, numbered, read, without
from tests.support.go_data import TIME, GoQueue, record, write_metadata

# Undamaged queues


@pytest.mark.behaviour("diskqueue.TestDiskQueue")
def test_a_queue_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Bodies, timestamps and attempts are read in order, and the depth from the metadata."""
    GoQueue(tmp_path, NAME).put(b"one", b"two").put(b"three", attempts=700).close()

    queue = found(tmp_path)
    (piece,) = read_queue(DISK, str(tmp_path), queue)

    assert isinstance(piece, GoRecords)
    assert [b"one", b"two", b"three"] == [bytes(body) for body in piece.bodies()]
    assert [TIME, TIME + 1_000_000, TIME + 2_000_000] == piece.timestamps().tolist()
    assert [0, 0, 700] == piece.attempts().tolist()
    assert queue.positions is not None
    assert 3 == queue.positions.depth


@pytest.mark.behaviour("diskqueue.TestDiskQueueRoll")
def test_a_queue_of_several_files_is_one_queue(tmp_path: Path) -> None:
    """A queue of 11 messages in two files, 10 and 1, is read completely."""
    queue = GoQueue(tmp_path, NAME, max_bytes=10 * (30 + 20)).put(*numbered(11)).close()

    assert (1, 50) == queue.write
    assert (numbered(11), []) == read(tmp_path)


@pytest.mark.behaviour("diskqueue.TestDiskQueueResize")
def test_files_of_any_size_are_read(tmp_path: Path) -> None:
    """Files written with different size limits are read as one queue."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(37))
    queue.max_bytes = 3_000
    queue.put(*numbered(200)).close()

    assert (numbered(37) + numbered(200), []) == read(tmp_path)


def test_reading_begins_at_the_stored_position(tmp_path: Path) -> None:
    """Messages before the stored read position are skipped, over files and within one."""
    GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(95)).take(34).close()

    assert (numbered(95)[34:], []) == read(tmp_path)


# Crashes


def test_messages_after_the_stored_write_position_are_read(tmp_path: Path) -> None:
    """Messages after the stored write position are read; a truncated record is reported."""
    queue = GoQueue(tmp_path, NAME, max_bytes=2_000).put(*numbered(30)).close()
    queue.put(*numbered(100))
    with queue.path(queue.write[0]).open("ab") as file:
        file.write(record(b"never finished", 1)[:-3])

    bodies, bad = read(tmp_path)

    assert numbered(30) + numbered(100) == bodies
    assert ["truncated, or its length field is damaged"] == [piece.reason for piece in bad]


def test_a_missing_file_of_the_read_position_is_skipped(tmp_path: Path) -> None:
    """If the file of the read position is missing, reading begins with the next, with a note."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(25)).close()
    queue.path(0).unlink()

    assert (numbered(25)[10:], []) == read(tmp_path)
    assert ["data file 0 is missing: assumed to have been read completely"] == found(tmp_path).notes


def test_a_file_before_the_read_position_is_skipped(tmp_path: Path) -> None:
    """A file before the read position is skipped, with a note."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(25))
    old = queue.path(0).read_bytes()
    queue.take(12).close()
    queue.path(0).write_bytes(old)

    assert (numbered(25)[12:], []) == read(tmp_path)
    assert ["was read completely" in note for note in found(tmp_path).notes] == [True]


@pytest.mark.behaviour("more.missing-diskqueue-metadata")
@pytest.mark.parametrize("text", [None, b"", b"12\n0,", b"\0" * 20], ids=str)
def test_without_metadata_all_messages_are_read(tmp_path: Path, text: bytes | None) -> None:
    """Without valid metadata all messages are read; Go's nsqd would begin at 0 and overwrite."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(25))
    if text is not None:
        queue.metadata.write_bytes(text)

    bodies, bad = read(tmp_path)

    assert numbered(25) == bodies
    assert (text is not None) == bool(bad)


# Damage


@pytest.mark.behaviour("diskqueue.TestDiskQueueCorruption")
def test_a_truncated_file_loses_only_its_end(tmp_path: Path) -> None:
    """A truncated file, and a wrong length in another, cost only the messages concerned."""
    queue = GoQueue(tmp_path, NAME, max_bytes=1_000).put(*numbered(60)).close()
    with queue.path(1).open("r+b") as file:
        file.truncate(10 * 50 - 7)
    queue.damage_length(50, 0)

    bodies, bad = read(tmp_path)

    assert without(numbered(60), *range(29, 40), 50) == bodies
    assert [(str(queue.path(1)), 450), (str(queue.path(2)), 500)] == [b[:2] for b in bad]


@pytest.mark.parametrize("size", [0, 300, 499, 500, 720])
def test_a_file_shorter_than_its_metadata_is_damage(tmp_path: Path, size: int) -> None:
    """A file shorter than its metadata's position is damage, even if it ends between records."""
    queue = GoQueue(tmp_path, NAME).put(*numbered(20)).take(10).close()
    with queue.path(0).open("r+b") as file:
        file.truncate(size)

    bodies, bad = read(tmp_path)

    assert numbered(20)[10 : max(10, size // 50)] == bodies
    assert bad[0].reason.startswith("the file ends before position 1000")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    """Missing files, in the middle or at the end, are reported; all others are read."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(55)).close()
    for number in (2, 3, 5):
        queue.path(number).unlink()

    bodies, bad = read(tmp_path)

    assert numbered(20) + numbered(55)[40:50] == bodies
    reasons = ["data files 2 to 3 are missing", "data file 5 is missing"]
    assert reasons == [piece.reason for piece in bad]


def test_undamaged_messages_of_a_bad_file_are_read(tmp_path: Path) -> None:
    """Undamaged messages of a `.bad` file, which nsqd renamed at its first damage, are read."""
    queue = GoQueue(tmp_path, NAME, max_bytes=500).put(*numbered(30))
    queue.damage_length(4)
    queue.path(0).rename(f"{queue.path(0)}.bad")
    queue.read = (1, 50)
    queue.close()

    bodies, bad = read(tmp_path)

    assert without(numbered(30), 4, 10) == bodies
    assert [f"{queue.path(0)}.bad"] == [piece.path for piece in bad]
    assert "may have been delivered" in found(tmp_path).notes[0]


# The data path


def test_names_that_look_like_parts_of_file_names_are_read(tmp_path: Path) -> None:
    """Names that look like parts of a queue's file name are read correctly."""
    names = ["a.b", "a.b:c.d", "x.diskqueue.000000.dat", "x.diskqueue.meta:meta.dat", "..:.", "w;c"]
    for name in names:
        GoQueue(tmp_path, name).put(name.encode()).close()

    queues = survey(DISK, str(tmp_path)).queues()

    bodies = {
        queue.name: [
            bytes(body)
            for piece in read_queue(DISK, str(tmp_path), queue)
            if isinstance(piece, GoRecords)
            for body in piece.bodies()
        ]
        for queue in queues
    }
    filled = {name: [name.encode()] for name in names if ";" not in name} | {"w:c": [b"w;c"]}
    assert filled == {name: found for name, found in bodies.items() if found}


def test_topics_channels_and_pauses_are_read(tmp_path: Path) -> None:
    """Topics, channels and pauses are read from nsqd.dat; other queues are found by their files."""
    write_metadata(tmp_path, {"clicks": {"archive": True, "empty": False}, "none": {}}, "none")
    GoQueue(tmp_path, "clicks:archive").put(b"x").close()
    GoQueue(tmp_path, "clicks:new").put(b"x").close()
    GoQueue(tmp_path, "forgotten").put(b"x").close()

    data = survey(DISK, str(tmp_path))

    pauses = {
        topic.name: (topic.queue.paused, {name: c.paused for name, c in topic.channels.items()})
        for topic in data.topics.values()
    }
    assert pauses == {
        "clicks": (False, {"archive": True, "empty": False, "new": False}),
        "none": (True, {}),
        "forgotten": (False, {}),
    }
    assert ["not listed in nsqd.dat"] == data.topics["forgotten"].queue.notes


def test_ephemeral_and_invalid_names_are_skipped(tmp_path: Path) -> None:
    """Ephemeral and invalid names are skipped with a note, as in Go; their files count as Go's."""
    topics = {"a#ephemeral": {}, "b": {"c#ephemeral": False, "d e": False}, "$": {}}
    write_metadata(tmp_path, topics)
    GoQueue(tmp_path, "b:c#ephemeral").put(b"x").close()

    data = survey(DISK, str(tmp_path))

    assert {"b": []} == {topic.name: list(topic.channels) for topic in data.topics.values()}
    assert 5 == len([note for note in data.notes if "is skipped" in note])
    assert "b:c#ephemeral.diskqueue.000000.dat" in data.names


def test_metadata_of_nsqd_before_1_0_are_read(tmp_path: Path) -> None:
    """Metadata of nsqd before 1.0 is read: its file name has the worker's id."""
    write_metadata(tmp_path, {"clicks": {"archive": True}})
    (tmp_path / "nsqd.dat").rename(tmp_path / "nsqd.123.dat")

    data = survey(DISK, str(tmp_path))

    assert data.topics["clicks"].channels["archive"].paused


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"topics": [{"name": 1}]}', b"\xff\0"], ids=str
)
def test_unreadable_metadata_raise(tmp_path: Path, text: bytes) -> None:
    """An unreadable nsqd.dat raises GoDataError: channels without messages would be lost."""
    (tmp_path / "nsqd.dat").write_bytes(text)

    with pytest.raises(GoDataError, match=r"nsqd\.dat cannot be read.*move it away"):
        survey(DISK, str(tmp_path))


def test_go_files_returns_all_files_of_gos_nsqd(tmp_path: Path) -> None:
    """``go_files`` returns all files of Go's nsqd, also temporary ones, and no others."""
    gos = [
        "a.diskqueue.000000.dat",
        "a.diskqueue.000001.dat.bad",
        "a.diskqueue.meta.dat",
        "a.diskqueue.meta.dat.77.tmp",
        "nsqd.dat",
        "nsqd.dat.123.tmp",
    ]
    for name in [*gos, "nsqd.log", "sparq.json", "a.diskqueue.dat", "nsqd.data", "x.dat"]:
        (tmp_path / name).touch()

    assert gos == go_files(DISK, str(tmp_path))
