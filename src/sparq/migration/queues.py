"""The data path of Go's nsqd: topics, channels and the files of their queues.

::

    nsqd.dat                            topics, channels, and which of them are paused (JSON)
    <queue>.diskqueue.meta.dat          depth, read position, write position (text)
    <queue>.diskqueue.<number>.dat      records (see `records`), 6 digits or more
    <queue>.diskqueue.<number>.dat.bad  a data file that nsqd abandoned at its first damage

A queue has the name of its topic, or ``<topic>:<channel>`` (``;`` on Windows). Names may contain
dots.

1. A queue reaches from its read position to the end of its last file. After a crash the stored
   positions are older than the data: messages may come twice, but none is skipped.
2. A data file before the read position has been read, and nsqd was about to delete it. A `.bad`
   file has not been read, so all whole records in it count.
3. Without metadata, everything in the files counts.
4. This module changes no file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from sparq.log.check import file_size
from sparq.log.disk import Disk, read_bytes
from sparq.migration.records import BadBytes, GoRecords, read_records
from sparq.protocol.names import is_ephemeral, is_valid_name

METADATA: Final = "nsqd.dat"
TEMPORARY: Final = "go-import.tmp"
"""The folder of an import under construction; see `data_path_import`."""
COMMITTED: Final = "go-import"
"""The folder of a complete import whose files are not yet in place."""

_METADATA: Final = re.compile(r"nsqd(?:\.\d+)?\.dat")
_METADATA_BESIDE: Final = re.compile(r"nsqd(?:\.\d+)?\.dat\.\d+\.tmp")
# Greedy: the last `.diskqueue.` counts, as the name of a topic may contain this text, too.
_QUEUE_FILE: Final = re.compile(
    r"(?P<queue>.+)\.diskqueue\."
    r"(?:(?P<number>\d{6,})\.dat(?P<bad>\.bad)?|meta\.dat(?P<beside>\.\d+\.tmp)?)",
    re.DOTALL,
)
_POSITIONS: Final = re.compile(rb"(-?\d+)\s+(\d+),(\d+)\s+(\d+),(\d+)\s*")
_SEPARATOR: Final = re.compile("[:;]")


class GoDataError(Exception):
    """Data that cannot be interpreted without the operator; the text says what to do."""


class Position(NamedTuple):
    """A place in a queue: the number of a file and an offset in it."""

    number: int
    offset: int


class GoQueuePositions(NamedTuple):
    """The contents of a queue's metadata file."""

    depth: int
    read: Position
    write: Position


class DataFile(NamedTuple):
    """A data file.

    Attributes:
        name: its name in the data path.
        start: the offset of the first unread byte.
        written: the write position from the metadata; -1: it is in another file.
    """

    number: int
    name: str
    bad: bool
    size: int = 0
    start: int = 0
    written: int = -1


@dataclass(slots=True)
class GoQueue:
    """The queue of a topic, or of one of its channels.

    Attributes:
        name: `<topic>` or `<topic>:<channel>`.
        paused: whether the topic or channel is paused.
        positions: its metadata; None: missing or unreadable.
        files: the data files to read, in order.
        missing: data that the metadata refer to but that is missing.
        notes: further notes for the operator.
    """

    name: str
    paused: bool = False
    positions: GoQueuePositions | None = None
    files: list[DataFile] = field(default_factory=list)
    missing: list[BadBytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """The number of unread bytes."""
        return sum(file.size - file.start for file in self.files)


@dataclass(slots=True)
class GoTopic:
    """A topic; its own queue holds messages that have not reached its channels yet."""

    name: str
    queue: GoQueue
    channels: dict[str, GoQueue] = field(default_factory=dict)


@dataclass(slots=True)
class GoData:
    """The contents of a data path.

    Attributes:
        names: all files of Go's nsqd, including those that hold nothing useful.
        notes: notes for the operator.
    """

    topics: dict[str, GoTopic] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def queues(self) -> list[GoQueue]:
        """List all queues: of each topic those of its channels, then its own."""
        return [
            queue
            for topic in self.topics.values()
            for queue in (*topic.channels.values(), topic.queue)
        ]


def go_files(disk: Disk, data_path: str) -> list[str]:
    """List the names of the files of Go's nsqd in a data path, sorted.

    Raises:
        DiskError: the data path cannot be read.
    """
    patterns = (_METADATA, _METADATA_BESIDE, _QUEUE_FILE)
    names = disk.listdir(data_path)
    return [name for name in names if any(pattern.fullmatch(name) for pattern in patterns)]


def survey(disk: Disk, data_path: str) -> GoData:
    """Find out what a data path holds, without reading messages.

    Raises:
        DiskError: a file cannot be read.
        GoDataError: nsqd.dat cannot be interpreted.
    """
    data = GoData(names=go_files(disk, data_path))
    metadata = [name for name in data.names if _METADATA.fullmatch(name)]
    if metadata:
        # Versions before 1.0 had the worker's id in the file name; later ones kept that name as a
        # link.
        name = METADATA if METADATA in metadata else metadata[0]
        _add_metadata(disk, f"{data_path}/{name}", data)
    else:
        data.notes.append(
            f"{METADATA} is missing: channels are detected only from their queue files"
        )
    listed = {queue.name for queue in data.queues()}
    matches = [match for match in map(_QUEUE_FILE.fullmatch, data.names) if match is not None]
    for name in dict.fromkeys(match["queue"] for match in matches):
        queue = _queue(data, *_SEPARATOR.split(name, maxsplit=1))
        if queue is None:
            continue
        if metadata and queue.name not in listed:
            # A crash before nsqd.dat was written: nsqd reads the files once the name is used again.
            queue.notes.append(f"not listed in {METADATA}")
        own = [match for match in matches if match["queue"] == name]
        _fill_queue(disk, data_path, queue, own)
    return data


class _ListedChannel(Struct):
    name: str
    paused: bool = False


class _ListedTopic(_ListedChannel):
    channels: list[_ListedChannel] | None = None


class _Metadata(Struct):
    """The contents of nsqd.dat."""

    topics: list[_ListedTopic]


def _add_metadata(disk: Disk, path: str, data: GoData) -> None:
    """Read topics, channels and pauses from nsqd.dat."""
    try:
        metadata = msgspec.json.decode(_read_all(disk, path), type=_Metadata)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise GoDataError(
            f"{path} cannot be read: {error}. Repair it, or move it away to import without it"
            " (empty channels and pauses are then lost)"
        ) from error
    for topic in metadata.topics:
        if (own := _queue(data, topic.name)) is None:
            continue
        own.paused = topic.paused
        for channel in topic.channels or ():
            if (queue := _queue(data, topic.name, channel.name)) is not None:
                queue.paused = channel.paused


def _queue(data: GoData, topic: str, channel: str | None = None) -> GoQueue | None:
    """Return the queue of a topic or channel, new or known.

    None, with a note: a topic or channel of this name does not survive a restart of nsqd.
    """
    for what, name in (("topic", topic), (f"channel of topic {topic}", channel)):
        if name is not None and not is_valid_name(name):
            data.notes.append(f"{what} {name!r} is skipped: invalid name")
            return None
        if name is not None and is_ephemeral(name):
            data.notes.append(f"{what} {name} is skipped: ephemeral")
            return None
    own = data.topics.setdefault(topic, GoTopic(topic, GoQueue(topic)))
    if channel is None:
        return own.queue
    return own.channels.setdefault(channel, GoQueue(f"{topic}:{channel}"))


def _fill_queue(disk: Disk, data_path: str, queue: GoQueue, matches: list[re.Match[str]]) -> None:
    """Fill in a queue from its files."""
    for match in matches:
        if match["number"] is None and not match["beside"]:
            path = f"{data_path}/{match[0]}"
            text = _read_all(disk, path)
            if found := _POSITIONS.fullmatch(text):
                depth, *at = map(int, found.groups())
                queue.positions = GoQueuePositions(depth, Position(*at[:2]), Position(*at[2:]))
            else:
                queue.missing.append(BadBytes(path, 0, len(text), "not valid queue metadata"))
    files = [
        DataFile(int(match["number"]), match[0], bool(match["bad"]))
        for match in matches
        if match["number"] is not None
    ]
    if queue.positions is None and files:
        queue.notes.append("no metadata file: all messages in its data files are imported")
    # `.bad` first: nsqd has renamed it, so a file with the same number was begun after that.
    for file in sorted(files, key=lambda file: (file.number, not file.bad)):
        size = file_size(disk, f"{data_path}/{file.name}")
        _add_file(queue, data_path, file._replace(size=size))
    if queue.positions is not None:
        _note_missing(queue, data_path, queue.positions, {file.number for file in files})


def _add_file(queue: GoQueue, data_path: str, file: DataFile) -> None:
    """Decide whether a data file has to be read, and from which offset."""
    positions = queue.positions
    path = f"{data_path}/{file.name}"
    if file.bad:
        queue.notes.append(
            f"{path} was abandoned by nsqd; its messages may have been delivered already"
        )
    if positions is not None:
        if file.number == positions.read.number:
            file = file._replace(start=positions.read.offset)
        elif file.number < positions.read.number and not file.bad:
            queue.notes.append(f"{path} was read completely; skipped")
            return
        if file.number == positions.write.number:
            file = file._replace(written=positions.write.offset)
    expected = max(file.written, file.start)
    if file.size < expected and not file.bad:
        reason = f"the file ends before position {expected} recorded in the metadata"
        queue.missing.append(BadBytes(path, file.size, expected - file.size, reason))
    if file.size > file.written >= 0:
        queue.notes.append(f"{path} continues after the stored write position (nsqd crashed)")
    queue.files.append(file._replace(start=min(file.start, file.size)))


def _note_missing(
    queue: GoQueue, data_path: str, positions: GoQueuePositions, numbers: set[int]
) -> None:
    """Record files that are missing between the read and the write position."""
    read, write = positions.read, positions.write
    after = sorted({number for number in numbers if number > read.number} | {write.number})
    if read.number not in numbers and read.number < write.number:
        # After reading a file, nsqd deletes it before it stores the next read position.
        queue.notes.append(
            f"data file {read.number} is missing: assumed to have been read completely"
        )
    elif read.number not in numbers and read < write:
        reason = f"data file {read.number} is missing"
        size = write.offset - read.offset
        queue.missing.append(BadBytes(f"{data_path}/{queue.name}", read.offset, size, reason))
    previous = read.number
    for number in after:
        if number > previous + 1:
            reason = f"data files {previous + 1} to {number - 1} are missing"
            queue.missing.append(BadBytes(f"{data_path}/{queue.name}", 0, 0, reason))
        previous = number
    if write.number not in numbers and write.offset and write.number != read.number:
        reason = f"data file {write.number} is missing"
        queue.missing.append(BadBytes(f"{data_path}/{queue.name}", 0, write.offset, reason))


def read_queue(disk: Disk, data_path: str, queue: GoQueue) -> Iterator[GoRecords | BadBytes]:
    """Yield a queue's messages in order, and the parts of it that cannot be read.

    Raises:
        DiskError: a file cannot be opened or read.
    """
    yield from queue.missing
    for data_file in queue.files:
        file = disk.open(f"{data_path}/{data_file.name}")
        try:
            yield from read_records(file, data_file.start, data_file.size, data_file.written)
        finally:
            file.close()


def _read_all(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return read_bytes(file, file.size(), 0)
    finally:
        file.close()
