"""Inspects the logs and ledgers of a data path without changing them, and reports all damage.

1. Every byte that counts is read: all payloads of the logs.
2. Depths are those that nsqd will show after a start on the same files: a channel's unfinished
   messages up to the mark P, minus the deferred ones. Lost messages are not included.
3. The disk refuses changes, and no other process writes to the data path meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from sparq.log import journal
from sparq.log.block import BlockCache
from sparq.log.disk import Disk, DiskError
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.log.metadata import FACTS, MetadataError, decode
from sparq.protocol.instant import Instant
from sparq.protocol.names import topic_of_directory

TOPICS: Final = "topics"
CACHE_BYTES: Final = 1 << 20
"""Each extent is read only once, so a larger cache gains nothing."""

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


@dataclass(slots=True)
class CheckRow:
    """The contents of one topic or channel.

    Attributes:
        channel: empty for the topic's own messages, which its channels cannot see yet.
        depth: waiting messages, without the deferred ones.
        deferred: messages that are not due yet.
        attempted: messages that have been delivered before.
        size_bytes: size of the topic's log, or unread bytes of the queue's files.
        damage, notes: descriptions for the operator.
    """

    topic: str
    channel: str
    paused: bool
    depth: int = 0
    deferred: int = 0
    attempted: int = 0
    size_bytes: int = 0
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CheckReport:
    """The contents of a data path.

    Attributes:
        kind: "sparq"; `sparq.migration.check` also knows "go" and "both".
    """

    kind: str
    rows: list[CheckRow] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def all_damage(self) -> list[str]:
        """List all damage, of the data path and of each row."""
        return [*self.damage, *(text for row in self.rows for text in row.damage)]

    def all_notes(self) -> list[str]:
        """List all notes for the operator, of the data path and of each row."""
        names = [f"{row.topic}:{row.channel}".rstrip(":") for row in self.rows]
        own = (f"{n}: {t}" for n, row in zip(names, self.rows, strict=True) for t in row.notes)
        return [*self.notes, *own]


def check(disk: Disk, data_path: str, now: Instant, progress: Progress) -> CheckReport | None:
    """Inspect what sparq's nsqd has written; None: there is nothing of it.

    Raises:
        DiskError: a folder or file cannot be opened or read at all.
    """
    if not disk.exists(f"{data_path}/{FACTS}") and not disk.exists(f"{data_path}/{TOPICS}"):
        return None
    report = CheckReport("sparq")
    _check_facts(disk, data_path, report)
    if numbers := journal.found(disk, data_path):
        report.notes.append(
            f"{len(numbers)} journals: nsqd was not stopped cleanly; its next start writes"
            " their batches back to the topics (until then, after a power cut, the ends of logs"
            " may look torn)"
        )
    check_topics(disk, f"{data_path}/{TOPICS}", now, progress, report)
    return report


def size_of(disk: Disk, data_path: str) -> int:
    """Estimate how many bytes `check` will read.

    Raises:
        DiskError: a folder or file cannot be read.
    """
    home, total = f"{data_path}/{TOPICS}", 0
    for folder in disk.listdir(home) if disk.exists(home) else ():
        names = disk.listdir(f"{home}/{folder}")
        logs = (name for name in names if name.endswith(".log"))
        total += sum(file_size(disk, f"{home}/{folder}/{name}") for name in logs)
    return total


def file_size(disk: Disk, path: str) -> int:
    """Return a file's size in bytes. Raises DiskError."""
    with closing(disk.open(path)) as file:
        return file.size()


def _check_facts(disk: Disk, data_path: str, report: CheckReport) -> None:
    path = f"{data_path}/{FACTS}"
    if not disk.exists(path):
        report.damage.append(f"{path} is missing")
        return
    with closing(disk.open(path)) as file:
        text = file.pread(file.size(), 0)
    try:
        facts = decode(text)
        report.notes.append(f"format {facts.format}, node id {facts.node_id}")
    except MetadataError as error:
        report.damage.append(f"{path} is damaged: {error}")


def check_topics(
    disk: Disk, home: str, now: Instant, progress: Progress, report: CheckReport
) -> None:
    """Inspect the topics in the folder `home`, and add them to the report; none if it is missing.

    Raises:
        DiskError: the folder cannot be read.
    """
    for folder in disk.listdir(home) if disk.exists(home) else ():
        name = topic_of_directory(folder)
        if name is None:
            report.notes.append(f"{home}/{folder} is not a topic folder")
            continue
        try:
            report.rows += _sparq_rows(disk, f"{home}/{folder}", name, now, progress)
        except DiskError as error:
            report.damage.append(f"topic {name} cannot be opened: {error}")


def _sparq_rows(
    disk: Disk, folder: str, name: str, now: Instant, progress: Progress
) -> Iterator[CheckRow]:
    state, notes = Ledger.read(disk, folder)
    log = Log.open(
        disk,
        folder,
        node_id=0,  # it matters only for new messages
        options=LogOptions(),
        now=now,
        floor_index=state.highest_index + 1,
        cache=BlockCache(CACHE_BYTES),
        believes_indexes=False,
    )
    own = CheckRow(name, "", state.paused, size_bytes=log.size_bytes)
    for text in notes:
        # An unfinished write is left by a kill; it is not damage.
        (own.notes if text.endswith("(torn)") else own.damage).append(text)
    own.damage += _read_through(log, progress)
    own.damage += map(str, log.damage)
    if log.torn_bytes:
        own.notes.append(f"{log.torn_bytes} bytes of an unfinished write at the end of its log")
    # P: channels see only messages below it. The ledger has it only where it stopped: while
    # messages flow, P follows the log.
    mark = log.written_end
    if state.paused or not state.channels:
        mark = min(mark, log.first_index if state.mark is None else state.mark)
    mark = max([mark, *(channel.cursor for channel in state.channels.values())])
    own.depth = log.messages_between(mark, log.written_end)
    log.close()
    yield own
    dues = {index for index, due_ns in log.due_entries if due_ns > now.wall_ns}
    for channel_name, channel in state.channels.items():
        done = [(first, min(end, mark)) for first, end in channel.finished if first < mark]
        unfinished = log.messages_between(channel.start, mark)
        unfinished -= sum(log.messages_between(first, end) for first, end in done)
        held_back = [i for i in dues - channel.requeued.keys() if channel.start <= i < mark]
        deferred = sum(not any(first <= i < end for first, end in done) for i in held_back)
        deferred += sum(due_ns > now.wall_ns for due_ns, _ in channel.requeued.values())
        attempted = sum(attempts > 0 for _, attempts in channel.requeued.values())
        depth = unfinished - deferred
        yield CheckRow(name, channel_name, channel.paused, depth, deferred, attempted)


def _read_through(log: Log, progress: Progress) -> Iterator[str]:
    """Verify every batch: damage is added to `log.damage`, read errors are yielded."""
    index = log.next_stored(0)
    while index < log.written_end:
        read = log.load(index)
        read.run()
        assert read.place is not None
        if read.error is not None:
            yield str(read.error)
        log.store(read)
        progress(read.place.extent.size)
        index = log.next_stored(read.place.extent.end)
