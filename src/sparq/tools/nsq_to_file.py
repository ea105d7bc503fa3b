"""The program `nsq_to_file`: writes topics to files, one message per line; rotates and compresses.

It has the flags of NSQ's `nsq_to_file`, and differs from it where that loses or mixes up messages:

1. A message is finished when its bytes, and the name of the file that has them, are on the disk.
   No message is dropped for having too many attempts, unless `--consumer-opt=max_attempts,N` asks
   for it. A kill can leave messages in a file twice, and one of them torn: on a line of its own, or
   in the last member of a gzip file.
2. No file is outside `--output-dir` or `--work-dir`, whatever the topics and the other flags are,
   and no symbolic link below these folders is followed.
3. Files that a killed run has left in `--work-dir` are moved to `--output-dir` at the next start;
   so only sparq's `nsq_to_file` may use that folder, in any number of processes.
4. With `--topic-pattern` all nsqlookupds are asked for topics at the start and then every
   `--topic-refresh`. One that fails only loses its own answer, and is logged when it begins to
   fail.

If writing one topic fails, the program ends: the others sync and finish their messages. A topic
that `--topic-pattern` found and that can have no file below the folder is logged once, and its
messages stay in nsqd.

SIGHUP: sync, finish messages and close the files. SIGINT and SIGTERM: the same, then exit status 0.
A file that cannot be written ends the program with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

import aiohttp

from sparq.client.discovery import background
from sparq.client.lookup import NsqlookupdClient
from sparq.client.subscription import Batch
from sparq.options.units import SECOND, format_duration
from sparq.program.logging import set_up
from sparq.protocol.lookup import names, question, shown
from sparq.protocol.names import quote
from sparq.tools import common
from sparq.tools.commands import NsqToFileOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import progress_shown

PROGRAM: Final = "nsq_to_file"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger(__name__)

T = TypeVar("T")

MIB: Final = 1 << 20
NEVER: Final = float("inf")


async def serve(options: Options, stop: asyncio.Event) -> int:
    """Record until the event is set or a file cannot be written; return the exit status.

    Raises:
        UsageError: an option is not valid; the text names the flag.
    """
    check(options)
    set_up(options.log_prefix, options.log_level)
    return await Archive(options).run(stop)


def check(options: Options) -> None:
    """Check the options. Raises UsageError: they do not go together; the text names the flag."""
    if not options.channel:
        raise UsageError("--channel is required")
    common.consumers_of(PROGRAM, options, (), options.channel)
    if not options.topics and not options.topic_pattern:
        raise UsageError("--topic or --topic-pattern required")
    if not options.topics and not options.lookupd_http_addresses:
        raise UsageError("--lookupd-http-address must be specified when no --topic specified")


class Archive:
    """Recorders by topic: of the given topics, or of topics found that match the pattern.

    Topics are looked up again every `--topic-refresh`; a topic that vanishes keeps its recorder,
    because it may come back.

    Args:
        options: checked.

    Raises:
        UsageError: an option is not valid; the text names the flag.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        text = options.topic_pattern
        try:
            self._is_wanted = re.compile(text, re.ASCII).search if text else bool  # all are true
        except re.error as error:
            raise UsageError(f"--topic-pattern {quote(text)}: {error}") from None
        self._work, self._finished = _folder("output-dir", options.output_dir), None
        if options.work_dir and os.path.realpath(options.work_dir) != self._work.path:
            self._finished = self._work
            self._work = _folder("work-dir", options.work_dir, is_owned=True)
        self._recorders: dict[str, Recorder] = {}
        topics = dict.fromkeys(options.topics)
        for topic in filter(self._is_wanted, topics):
            try:
                self._recorders[topic] = Recorder(topic, options, self._work, self._finished)
            except FilenameError as error:
                raise UsageError(f"--filename-format: {error}") from None
        if topics and not self._recorders:
            raise UsageError("--topic-pattern matches no --topic")
        if left_out := topics.keys() - self._recorders.keys():
            names = ", ".join(sorted(left_out))
            log.warning("skipping topics that the pattern does not match: %s", names)
        self._running: list[asyncio.Task[None]] = []
        self._failing_lookupds: set[str] = set()
        self._status = 0
        self._shown = (0, time.monotonic())

    async def run(self, stop: asyncio.Event) -> int:
        """Record until the event is set or a recorder fails; return the exit status."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reopen)
        for recorder in self._recorders.values():
            self._start(recorder, stop)
        finding = None if self._recorders else background(self._find_topics(stop), "topics")
        async with progress_shown(self.progress):
            await stop.wait()
        if finding is not None:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))
        await asyncio.gather(*self._running)
        return self._status

    def reopen(self) -> None:
        """Have every recorder sync and close its file."""
        for recorder in self._recorders.values():
            recorder.reopen()

    def progress(self) -> str:
        """Return the progress line; the rate is that since the last call."""
        recorders = self._recorders.values()
        count = sum(recorder.consumer.counters.finished for recorder in recorders)
        size = sum(recorder.output.written_bytes for recorder in recorders)
        files = sum(recorder.output.files for recorder in recorders)
        now = time.monotonic()
        (before, at), self._shown = self._shown, (count, now)
        rate = (count - before) / max(now - at, 0.001)
        return (
            f"topics {len(recorders)}, messages {count:,} ({rate:,.0f}/s), {size / MIB:,.1f} MiB,"
            f" files {files:,}"
        )

    def _start(self, recorder: Recorder, stop: asyncio.Event) -> None:
        async def record() -> None:
            try:
                await recorder.run()
            except ToolError as failure:
                log.critical("%s", failure)
                self._status = 1
            finally:
                # Also after a failure: the program ends then, and the other recorders sync and
                # finish first.
                stop.set()

        self._running.append(asyncio.create_task(record()))

    async def _find_topics(self, stop: asyncio.Event) -> None:
        refused: set[str] = set()
        while True:
            for topic in await self.known_topics():
                if topic in self._recorders or topic in refused:
                    continue
                try:
                    recorder = Recorder(topic, self._options, self._work, self._finished)
                except FilenameError as error:
                    log.error("topic %s is not recorded: %s", quote(topic), error)
                    refused.add(topic)
                    continue
                log.info("found topic %s", topic)
                self._recorders[topic] = recorder
                self._start(recorder, stop)
            await asyncio.sleep(self._options.topic_refresh_ns / SECOND)

    async def known_topics(self) -> list[str]:
        """Return the matching topics of the nsqlookupds that answer, in alphabetical order."""
        options = self._options
        # The TLS settings and the secret of the consumers count for nsqlookupds, too.
        config = common.consumer_config(PROGRAM, options)
        timeout = aiohttp.ClientTimeout(
            connect=options.http_client_connect_timeout_ns / SECOND,
            total=options.http_client_request_timeout_ns / SECOND,
        )
        urls = [question(each, "topics") for each in options.lookupd_http_addresses]
        async with NsqlookupdClient(config, timeout) as client:
            answers = await asyncio.gather(*(self._topics_at(client, url) for url in urls))
        return sorted(filter(self._is_wanted, set().union(*answers)))

    async def _topics_at(self, client: NsqlookupdClient, url: str) -> Sequence[str]:
        try:
            found, left_out = names(await client.ask(url), "topics")
        except (ConnectionError, ValueError) as error:
            if url not in self._failing_lookupds:
                log.error("nsqlookupd %s: %s", shown(url), error)
            self._failing_lookupds.add(url)
            return ()
        self._failing_lookupds.discard(url)
        if left_out:
            log.warning("skipped %d topics with invalid names", left_out)
        return found


class Recorder:
    """Writes one topic's messages to files, and finishes them when they are on the disk.

    1. FIN is sent only for messages that are on the disk. Any error of a file ends the recorder,
       which requeues its messages at once, so that nsqd need not wait for their timeout.
    2. It syncs when it holds as many messages as may be in flight, when the consumer is starved (no
       more come before some are finished), every `--sync-interval`, before half of a held message's
       timeout is over, when asked to reopen, and at its end.
    3. Files are written in other threads, one call at a time: a slow disk does not delay
       heartbeats.

    Args:
        topic: it has a legal name.
        options: checked.
        work: the folder to write to.
        finished: the folder that finished files are moved to; None: they stay.

    Raises:
        FilenameError: the topic can have no file.
        UsageError: an option of the client is not valid.
    """

    def __init__(self, topic: str, options: Options, work: Folder, finished: Folder | None) -> None:
        names = template(options, topic, is_moved=finished is not None)
        self._label = f"[{topic}/{options.channel}]"
        self.output = TopicOutput(names, work, finished, options, self._label)
        (self.consumer,) = common.consumers_of(PROGRAM, options, (topic,), options.channel)
        self._sync_interval = options.sync_interval_ns / SECOND
        self._held: list[Batch] = []
        self._held_count = 0
        self._overdue_at = NEVER
        self._tick_at = NEVER
        self._woken = asyncio.Event()
        self._reopening = False
        self._stopping = False

    async def run(self) -> None:
        """Record until stopped.

        Raises:
            ToolError: a file could not be written; only messages on the disk were finished.
        """
        await self._on_disk(self.output.recover_files)
        if self._stopping:
            return
        self._tick_at = time.monotonic() + self._sync_interval
        self.consumer.start()
        # wait=0: messages are not collected to larger batches, because they are held until a sync
        # anyway.
        batches = self.consumer.batches(max(1, self.consumer.max_in_flight), wait=0)
        receiving = asyncio.ensure_future(anext(batches, None))
        try:
            while True:
                await self._wait_for(receiving)
                if receiving.done():
                    if (batch := receiving.result()) is None:  # the consumer has stopped
                        break
                    self._hold(batch)
                    receiving = asyncio.ensure_future(anext(batches, None))
                    if await self._write(batch):
                        await self._finish()
                if (work := self._due_work()) is not None:
                    await self._on_disk(work)
                    await self._finish()
            await self._on_disk(self.output.close)
        finally:
            receiving.cancel()
            (last,) = await asyncio.gather(receiving, return_exceptions=True)
            for batch in (*self._held, *([last] if isinstance(last, Batch) else ())):
                batch.requeue(0, backoff=False)
            await self.consumer.stop(0.0)

    async def stop(self) -> None:
        """Sync and finish the messages received so far, and receive no more."""
        self._stopping = True
        self._woken.set()
        await self.consumer.stop()

    def reopen(self) -> None:
        """Sync, finish messages and close the file, soon; the next message opens the next file."""
        self._reopening = True
        self._woken.set()

    async def _wait_for(self, receiving: asyncio.Future[Any]) -> None:
        """Wait for the next batch, for the time at which something is due, or until woken."""
        due_at = min(self._tick_at, self._overdue_at, self.output.rotates_at)
        waking: asyncio.Future[Any] = asyncio.ensure_future(self._woken.wait())
        await asyncio.wait(
            [receiving, waking],
            timeout=max(0.0, due_at - time.monotonic()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        waking.cancel()
        self._woken.clear()

    def _hold(self, batch: Batch) -> None:
        if not self._held:
            now = time.monotonic()
            self._overdue_at = now + (batch.expires_at - now) / 2
        self._held.append(batch)
        self._held_count += len(batch)

    async def _write(self, batch: Batch) -> bool:
        """Write a batch; return whether all messages held are on the disk."""
        # While it stops, consumer.stop() waits for these messages: do not leave them to the next
        # tick. Nor if no more messages, or few, come before some are finished.
        sync = (
            self._stopping
            or self._held_count >= self.consumer.max_in_flight
            or self.consumer.is_starved
        )
        return await self._on_disk(partial(self.output.write, batch.bodies, sync=sync))

    def _due_work(self) -> Callable[[], None] | None:
        """Return what syncs, rotates or closes the file, if that is due."""
        now = time.monotonic()
        if self._reopening:
            self._reopening = False
            return self.output.close
        if now >= min(self._tick_at, self.output.rotates_at):
            self._tick_at = now + self._sync_interval
            return self.output.tick
        if now >= self._overdue_at or self._stopping:
            return self.output.sync
        return None

    async def _finish(self) -> None:
        """Send FIN for all messages held: they are on the disk."""
        held, self._held = self._held, []
        self._held_count, self._overdue_at = 0, NEVER
        for batch in held:
            await batch.finish()

    async def _on_disk(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread. Raises ToolError: it failed."""
        try:
            return await asyncio.to_thread(call)
        except (OSError, FilenameError) as error:
            raise ToolError(
                f"{self._label} cannot write {self.output.shown()}: {error}; unfinished messages"
                " are delivered again"
            ) from error


def _folder(flag: str, path: str, *, is_owned: bool = False) -> Folder:
    try:
        return Folder(path, is_owned=is_owned)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--{flag} {quote(path)}: {reason.lower()}") from None


# Names, folders and files: calls block, and run in other threads

REVISION: Final = "<REV>"
GZIP_SUFFIX: Final = ".gz"
ENTRY_BYTES_MAX: Final = 255
"""Longest file or folder name that file systems accept, in bytes."""

_PLACES: Final = re.compile("<(?:TOPIC|HOST|PID|DATETIME|REV)>")
_PLACES_AND_REST: Final = re.compile(f"{_PLACES.pattern}|.", re.DOTALL)
_HOST_PLACES: Final = re.compile("<(?:SHORT_HOST|HOSTNAME)>")
_CONVERSIONS: Final = re.compile("%[BbmAadHIMSYypZz%]")

FOLDER_MODE: Final = 0o770
FILE_MODE: Final = 0o666

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would block before it can be rejected.
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
"""Errors of file systems that support no hard links, or no more of them for this file."""

NEWLINE: Final = b"\n"
CHUNK_SIZE: Final = 1 << 20
GZIP_WINDOW_BITS: Final = 31
"""zlib's value for the gzip format with the largest window."""


class FilenameError(ValueError):
    """A template yields no name of a file below a folder; the text says why."""


def entries_of(name: str) -> tuple[str, ...]:
    """Split a path below a folder into its entries: folders, then the file's name.

    Raises:
        FilenameError: it leads out of the folder, or names no file in it.
    """
    if not name.isprintable():
        raise FilenameError(f"the file name {name!r} has unprintable characters")
    found = tuple(entry for entry in name.split("/") if entry not in ("", "."))
    if ".." in found:
        raise FilenameError(f"the file name {name!r} leads out of its folder")
    if not found:
        raise FilenameError(f"the file name {name!r} is empty or only `.` and `/`")
    if long := next((entry for entry in found if len(os.fsencode(entry)) > ENTRY_BYTES_MAX), ""):
        raise FilenameError(f"the file name {long:.40}... is longer than {ENTRY_BYTES_MAX} bytes")
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """The names of one topic's files.

    Attributes:
        text: the name with its fields.
        datetime_format: the format of the date in it, with the conversions that NSQ has, in
            English; any other `%` stays as it is.
        topic: the topic.
        host: the value of `<HOST>`.
    """

    text: str
    datetime_format: str
    topic: str
    host: str

    def at(self, when: datetime) -> str:
        """Return the name at this time; `<REV>` is not filled in yet."""
        values = {
            "<TOPIC>": self.topic,
            "<HOST>": self.host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": _CONVERSIONS.sub(
                lambda found: when.strftime(found[0]), self.datetime_format
            ),
        }
        return _PLACES.sub(lambda found: values.get(found[0], found[0]), self.text)

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches every name of this template, at any time, of any process.

        Each `<REV>` is a group.
        """
        # The date matches any text, slashes included: --datetime-format may name folders (%Y/%m).
        values = {"<PID>": "[0-9]+", "<DATETIME>": ".*", REVISION: "(-[0-9]{6,})"}
        values |= {"<TOPIC>": re.escape(self.topic), "<HOST>": re.escape(self.host)}
        parts = _PLACES_AND_REST.findall(self.text)
        return re.compile("".join(values.get(part) or re.escape(part) for part in parts))


def template(options: Options, topic: str, *, is_moved: bool = False) -> Template:
    """Return the template of a topic's files; `is_moved`: finished files go to another folder.

    If no two files can have names that differ only in the revision, `<REV>` is removed.

    Raises:
        FilenameError: `<REV>` is missing, or the format yields no name below a folder.
    """
    text = options.filename_format
    if not (options.gzip or options.rotate_size or options.rotate_interval_ns or is_moved):
        text = text.replace(REVISION, "")
    elif REVISION not in text:
        raise FilenameError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    if options.gzip and not text.endswith(GZIP_SUFFIX):
        text += GZIP_SUFFIX
    name = socket.gethostname()
    names = {"<SHORT_HOST>": name.partition(".")[0], "<HOSTNAME>": name}
    identifier = options.host_identifier or "<SHORT_HOST>"
    host = _HOST_PLACES.sub(lambda found: names[found[0]], identifier)
    made = Template(text, options.datetime_format, topic, host)
    entries_of(with_revision(made.at(datetime.now().astimezone()), 0))
    return made


def with_revision(name: str, revision: int) -> str:
    """Return the name with its revision: a dash and six digits."""
    return name.replace(REVISION, f"-{revision:06d}")


class Folder:
    """A folder of output files; it is created if missing.

    1. A name is a template whose fields are filled in: `<TOPIC>`, `<HOST>`, `<PID>`, `<DATETIME>`
       and `<REV>`. Nothing else in a template is special, and inserted values are not expanded
       again.
    2. A name is a relative path below some folder: it has no `..` and no unprintable characters,
       and a leading `/` is ignored. A name that leads elsewhere is refused, wherever it came from.
    3. A path is walked folder by folder (`entries_of`), each opened relative to the one before; no
       symbolic link is followed. The folder itself may be a link, because its owner has chosen it.
    4. Files and their names survive a power failure: after an entry is made in a folder, the folder
       is synced before anything relies on the entry.
    5. No file replaces another: a name that is in use stays with its file.
    6. Folders are created with mode 0770 and files with 0666, less the umask, as NSQ creates them.

    Args:
        path: where it is.
        is_owned: whether an open file is locked by the process that opened it, until it is closed
            or the process ends; no other process can then open it.

    Raises:
        OSError: here, it cannot be created or written to; in the methods, a system call fails.
    """

    def __init__(self, path: str, *, is_owned: bool = False) -> None:
        self._is_owned = is_owned
        self.path = os.path.realpath(path)
        _make(self.path)
        os.close(os.open(self.path, _FOLDER_FLAGS))
        if not os.access(self.path, os.W_OK | os.X_OK):
            reason = "permission denied: files cannot be created there"
            raise PermissionError(errno.EACCES, reason, self.path)

    def shown(self, name: str) -> str:
        """Return a file's whole path, for a person."""
        return os.path.join(self.path, *(each for each in name.split("/") if each not in ("", ".")))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, str]]:
        """Open a file's folder, created if missing; yield its descriptor and the file's own name.

        Raises:
            FilenameError: the name leads elsewhere.
        """
        *folders, file = entries_of(name)
        # Each folder is opened relative to the one before. A check of the whole path
        # (`os.path.realpath`) would not do: another program could replace a folder by a link
        # between the check and the open.
        fd = os.open(self.path, _FOLDER_FLAGS)
        try:
            for folder in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, FOLDER_MODE, dir_fd=fd)
                    os.fsync(fd)
                inner = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd, file
        finally:
            os.close(fd)

    def open(self, name: str, flags: int = os.O_CREAT) -> int:
        """Open a file for appending and reading; by default it is created if it is missing.

        Raises:
            FileExistsError: another process has it open (`is_owned`), or with O_EXCL the name is in
                use.
        """
        with self._opened(name) as (folder, file):
            # O_APPEND: without `is_owned`, another process may continue the same file. O_RDWR: the
            # end of an existing file is read, to find a torn message.
            flags |= os.O_RDWR | os.O_APPEND | _FILE_FLAGS
            fd = os.open(file, flags, FILE_MODE, dir_fd=folder)
            is_mine = False
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", self.shown(name))
                if self._is_owned:
                    # Lock first, compare then: until it has the lock, the previous owner may still
                    # move the file away, and this descriptor would be of a file without a name.
                    with contextlib.suppress(BlockingIOError, FileNotFoundError):
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        is_mine = os.path.samestat(os.fstat(fd), os.lstat(file, dir_fd=folder))
                    if not is_mine:
                        raise FileExistsError(errno.EEXIST, "in use", self.shown(name))
                # Also for a file that exists already: a killed process may have created it without
                # this sync.
                os.fsync(folder)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def names(self) -> Iterator[str]:
        """Yield the paths of all files below, without following links."""
        for folder, _, found in os.walk(self.path):
            for name in found:
                yield os.path.relpath(os.path.join(folder, name), self.path)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._opened(name) as (folder, file):
            os.unlink(file, dir_fd=folder)

    def has(self, name: str) -> bool:
        """Whether the name is in use, by any kind of entry."""
        with self._opened(name) as (folder, file):
            try:
                os.lstat(file, dir_fd=folder)
            except FileNotFoundError:
                return False
        return True

    def move_in(self, source: Folder, old: str, new: str) -> None:
        """Move a file from another folder to a new name here; its data is already synced.

        At any time it is complete under one of its names, or under both.

        Raises:
            FileExistsError: the new name is in use; nothing has changed.
        """
        with (
            source._opened(old) as (there, old_name),
            self._opened(new) as (here, new_name),
        ):
            try:
                # A link and not a rename, which would silently replace a file of that name; Linux
                # has RENAME_NOREPLACE, but Python does not offer it.
                _link(old_name, there, new_name, here)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(old_name, there, new_name, here)
            # The new name must be on the disk before the old one is removed: otherwise a power
            # failure could leave the file without a name.
            os.fsync(here)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old_name, dir_fd=there)
            os.fsync(there)


def _make(path: str) -> None:
    """Create a folder and its parents durably."""
    # Not os.makedirs: each new folder's entry must be synced in the folder above it (`Folder`).
    if os.path.lexists(path):
        return
    above = os.path.dirname(path)
    _make(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
    fd = os.open(above, _FOLDER_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link(old: str, there: int, new: str, here: int) -> None:
    """Give a file an unused name in the same file system."""
    try:
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links: reserve the name with an empty file, then replace that file.
        os.close(os.open(new, _NEW_FLAGS, FILE_MODE, dir_fd=here))
        try:
            os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)
        except OSError:
            os.unlink(new, dir_fd=here)
            raise


def _copy(old: str, there: int, new: str, here: int) -> None:
    """Copy the file from another file system; it gets its name only when it is complete."""
    # Not copied under the final name: a kill would leave a file there that looks complete.
    # Cut by bytes, because ENTRY_BYTES_MAX counts them; a character that is cut apart is dropped.
    name = os.fsencode(new)[:200].decode(errors="ignore")
    part = f".{name}.{secrets.token_hex(4)}.part"
    try:
        with (
            open(os.open(old, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=there), "rb") as source,
            open(os.open(part, _NEW_FLAGS, FILE_MODE, dir_fd=here), "wb") as copy,
        ):
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        _link(part, here, new, here)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=here)


class TopicOutput:
    """The files of one topic.

    1. When `sync` or `close` returns, the data written and the file's name are on the disk.
       Messages are finished only after that.
    2. The next file is opened when the file name has changed (the date in it), when the file is
       larger than `--rotate-size`, or when it is older than `--rotate-interval`. This is checked
       before each message is written.
    3. With gzip each `sync` ends a gzip member, so that synced data can be read whatever happens to
       the rest; a file holds many members, as gzip allows.
    4. A file that may be one of several with the same name is always new: if the name is in use,
       here or in the target folder, the revision is incremented. Otherwise an existing file is
       continued; if a kill has left it without a newline at its end, one is written first, so that
       the next message is not appended to the torn one.
    5. A finished file is moved to the folder `finished`, if that differs from the folder it was
       written in, under its name or the next free revision there.
    6. Files that a killed run has left are repaired and moved there, too: files whose name matches
       the template and that no process has open (`Folder`'s owner). Synced data is kept, and with
       it every message that was finished. A torn message in a plain file gets a newline; a gzip
       file is cut after its last complete member, where its last sync ended; a file without synced
       data is removed.
    7. Calls block, and only one may run at a time. After an error the output must not be used
       again.

    Args:
        template: their names.
        folder: where they are written.
        finished: where finished files go; None: they stay.
        options: when the next file is opened, and the level of gzip.
        label: the beginning of log lines.

    Attributes:
        files: the number of files opened.
        written_bytes: bytes written to them, before compression.
    """

    def __init__(
        self,
        template: Template,
        folder: Folder,
        finished: Folder | None,
        options: Options,
        label: str = "",
    ) -> None:
        self.files = 0
        self.written_bytes = 0
        self._template = template
        self._folder = folder
        self._finished = finished
        self._options = options
        self._label = label
        self._fd: int | None = None
        self._path = ""
        self._name = ""
        self._revision = 0
        self._size = 0
        self._opened_ns = 0
        self._member: zlib._Compress | None = None

    def recover_files(self) -> None:
        """Repair and move files that a killed run has left in the folder (rule 6)."""
        if self._finished is None:
            return
        pattern = self._template.pattern()
        for name in sorted(self._folder.names()):
            if (found := pattern.fullmatch(name)) is None:
                continue
            try:
                fd = self._folder.open(name, 0)
            except (FileExistsError, FileNotFoundError):  # it is in use, or was just moved
                continue
            except (OSError, FilenameError) as error:
                log.error(
                    "%s cannot open a file left by an earlier run, leaving it: %s",
                    self._label,
                    error,
                )
                continue
            try:
                # Only gzip shows where complete data ends. In a plain file, a torn message looks
                # like a complete one without its newline, so nothing of it is removed.
                if self._options.gzip:
                    size = whole_gzip(fd)
                    os.ftruncate(fd, size)
                else:
                    size = os.fstat(fd).st_size
                    _end_line(fd, size)
                os.fdatasync(fd)
                if not size:
                    self._folder.remove(name)
                    continue
                log.warning(
                    "%s %s was left by an earlier run", self._label, self._folder.shown(name)
                )
                # The last group first: a replacement moves everything after it.
                unrevised = name
                for group in range(len(found.groups()), 0, -1):
                    start, end = found.span(group)
                    unrevised = f"{unrevised[:start]}{REVISION}{unrevised[end:]}"
                self._deliver(name, unrevised, int(found[1].removeprefix("-")))
            finally:
                os.close(fd)

    # Writing

    def write(self, bodies: Sequence[bytes], *, sync: bool) -> bool:
        """Write messages, each followed by a newline.

        Args:
            bodies: the messages.
            sync: whether to sync everything written so far.
        Returns:
            Whether everything written so far is on the disk, which is also true after a rotation.
        Raises:
            OSError, FilenameError: writing failed; which data is on the disk is unknown.
        """
        at = 0
        while at < len(bodies):
            if reason := self._outdated():
                self._open_next(reason)
                # The caller holds messages of both files. If these are synced as well, True is the
                # answer for all that it holds.
                sync = True
            # One write for all messages that go to this file, up to the one that exceeds its limit,
            # not a system call for each.
            end = len(bodies)
            if most := self._options.rotate_size:
                sizes = accumulate((len(body) + 1 for body in bodies[at:]), initial=self._size)
                full = (count for count, size in enumerate(sizes) if count and size > most)
                end = min(end, at + next(full, end))
            self._append(NEWLINE.join(bodies[at:end]) + NEWLINE)
            at = end
        if sync:
            self.sync()
        return sync

    def sync(self) -> None:
        """Sync everything written so far to the disk."""
        if self._fd is None:
            return
        if self._member is not None:
            # End the member instead of Z_SYNC_FLUSH: whole_gzip can find the end of a member after
            # a kill, but not that of a flushed block. The next member starts with an empty
            # dictionary, so frequent syncs cost compression.
            _write(self._fd, self._member.flush())
            self._member = None
        # fdatasync also writes the new size; only the times are left out, which nobody needs.
        os.fdatasync(self._fd)

    @property
    def rotates_at(self) -> float:
        """When the file is too old, in seconds of the monotonic clock; infinite: never."""
        interval_ns = self._options.rotate_interval_ns
        if self._fd is None or not interval_ns:
            return math.inf
        return (self._opened_ns + interval_ns) / SECOND

    def tick(self) -> None:
        """Sync, and open the next file if it is due.

        With `--skip-empty-files` the next file is opened only when there is a message to write.
        """
        if not (reason := self._outdated()):
            self.sync()
        elif self._options.skip_empty_files:
            self.close()
        else:
            self._open_next(reason)

    def close(self) -> None:
        """Sync and close the file, if one is open; the next message opens the next file."""
        if self._fd is None:
            return
        if self._options.gzip and not self._size:
            self._append(b"")  # a file without any member is not valid gzip
        self.sync()
        fd, self._fd = self._fd, None
        os.close(fd)
        if self._finished is not None:
            self._deliver(self._path, self._name, self._revision)

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        self._size += len(data)
        self.written_bytes += len(data)
        if self._options.gzip:
            if self._member is None:
                level = self._options.gzip_level
                self._member = zlib.compressobj(level, wbits=GZIP_WINDOW_BITS)
            data = self._member.compress(data)
        _write(self._fd, data)

    # The next file

    def _name_now(self) -> str:
        return self._template.at(datetime.now().astimezone())

    def _outdated(self) -> str:
        """Return why the next file is due; empty if it is not."""
        if self._fd is None:
            return "no file is open"
        if (name := self._name_now()) != self._name:
            return f"its name is now {name}"
        age_ns = time.monotonic_ns() - self._opened_ns
        if 0 < self._options.rotate_interval_ns < age_ns:
            return f"it was opened {format_duration(age_ns)} ago"
        if 0 < self._options.rotate_size < self._size:
            return f"it is {self._size} bytes long (> {self._options.rotate_size})"
        return ""

    def _open_next(self, reason: str) -> None:
        if self._fd is not None:
            log.info("%s leaving %s: %s", self._label, self.shown(), reason)
            self.close()
        name = self._name_now()
        self._revision = 0 if name != self._name else self._revision + 1
        self._name = name
        self._opened_ns = time.monotonic_ns()
        first = self._revision
        while (fd := self._try_to_open()) is None:
            self._revision = self._next_revision(self._name, self._revision)
        if self._revision > first:
            log.warning(
                "%s %s: the %d revisions before it are in use",
                self._label,
                self.shown(),
                self._revision - first,
            )
        self._fd = fd
        self.files += 1
        log.info("%s opening %s", self._label, self.shown())

    def _try_to_open(self) -> int | None:
        """Open the file of this revision; None if its name is in use, or it is full already."""
        self._path = with_revision(self._name, self._revision)
        # Checked here to choose a free name early; another process may take it until the file is
        # finished, so _deliver handles that case again.
        if self._finished is not None and self._finished.has(self._path):
            return None
        # As in NSQ. A gzip file is not continued, because no reader gets past a torn member; nor is
        # a file that is rotated by age, because it is unknown when it was begun.
        is_new = self._options.gzip or self._options.rotate_interval_ns
        try:
            fd = self._folder.open(self._path, os.O_CREAT | (os.O_EXCL if is_new else 0))
        except FileExistsError:
            return None
        self._size = os.fstat(fd).st_size
        if 0 < self._options.rotate_size < self._size:
            os.close(fd)
            return None
        self._size += _end_line(fd, self._size)
        return fd

    # Finished files

    def _deliver(self, source: str, name: str, revision: int) -> None:
        """Move a finished file, to the next free revision if its name is in use.

        Args:
            source: the file.
            name: its name, in which `<REV>` is not filled in.
            revision: its revision.
        """
        assert self._finished is not None
        target = source
        while True:
            try:
                self._finished.move_in(self._folder, source, target)
                break
            except FileExistsError:
                log.warning("%s %s already exists", self._label, self._finished.shown(target))
                revision = self._next_revision(name, revision)
                target = with_revision(name, revision)
        moved = self._folder.shown(source), self._finished.shown(target)
        log.info("%s moved %s to %s", self._label, *moved)

    def _next_revision(self, name: str, revision: int) -> int:
        if REVISION not in name:
            raise FileExistsError(errno.EEXIST, "its name is in use", self._folder.shown(name))
        return revision + 1

    def shown(self) -> str:
        """Return the path of the current file, for a person."""
        return self._folder.shown(self._path)


def _write(fd: int, data: bytes) -> None:
    """Write all of the data: with one call, unless the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _end_line(fd: int, size: int) -> int:
    """End a torn message at a file's end with a newline; return the number of bytes written."""
    if not size or os.pread(fd, 1, size - 1) == NEWLINE:
        return 0
    _write(fd, NEWLINE)
    return len(NEWLINE)


def whole_gzip(fd: int) -> int:
    """Return the size of the complete members at the beginning of a gzip file."""
    at = whole = 0
    # Not the gzip module: it raises at a torn member and does not report where the last complete
    # one ended.
    member = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    while data := os.pread(fd, CHUNK_SIZE, at):
        try:
            # The output is dropped, but it is limited: a chunk of zeros would expand a
            # thousandfold.
            member.decompress(data, CHUNK_SIZE)
        except zlib.error:
            break
        at += len(data) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            whole = at
            member = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    return whole
