"""The files that one topic's messages are written to, one after another.

1. When `sync` or `close` returns, the data written and the file's name are on the disk. Messages
   are finished only after that.
2. The next file is opened when the file name has changed (the date in it), when the file is larger
   than `--rotate-size`, or when it is older than `--rotate-interval`. This is checked before each
   message is written.
3. With gzip each `sync` ends a gzip member, so that synced data can be read whatever happens to
   the rest; a file holds many members, as gzip allows.
4. A file that may be one of several with the same name is always new: if the name is in use, here
   or in the target folder, the revision is incremented. Otherwise an existing file is continued; if
   a kill has left it without a newline at its end, one is written first, so that the next message
   is not appended to the torn one.
5. A finished file is moved to the folder `finished`, if that differs from the folder it was written
   in, under its name or the next free revision there.
6. Files that a killed run has left are repaired and moved there, too: files whose name matches the
   template and that no process has open (`Folder`'s owner). Synced data is kept, and with it every
   message that was finished. A torn message in a plain file gets a newline; a gzip file is cut
   after its last complete member, where its last sync ended; a file without synced data is removed.
7. Calls block, and only one may run at a time. After an error the output must not be used again.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Final

from sparq.protocol.durations import SECOND, format_duration
from sparq.tools.folder import (
    REVISION,
    Entries,
    FilenameError,
    Folder,
    Template,
    entries_of,
    with_revision,
)

log = logging.getLogger(__name__)

NEWLINE: Final = b"\n"
CHUNK_SIZE: Final = 1 << 20
GZIP_WINDOW_BITS: Final = 31
"""zlib's value for the gzip format with the largest window."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When to open the next file; 0 disables a limit.

    Attributes:
        size: bytes before compression.
        interval_ns: nanoseconds since the file was opened.
    """

    size: int = 0
    interval_ns: int = 0


class TopicOutput:
    """The files of one topic.

    Args:
        template: their names.
        folder: where they are written.
        finished: where finished files go; None: they stay.
        rotation: when to open the next file.
        gzip_level: 1 to 9; 0: no gzip.
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
        rotation: Rotation,
        *,
        gzip_level: int = 0,
        label: str = "",
    ) -> None:
        self.files = 0
        self.written_bytes = 0
        self._template = template
        self._folder = folder
        self._finished = finished
        self._rotation = rotation
        self._gzip_level = gzip_level
        self._label = label
        self._fd: int | None = None
        self._entries: tuple[str, ...] = ()
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
            if (found := pattern.fullmatch(name)) is None or (fd := self._taken(name)) is None:
                continue
            try:
                if not self._repair_end(fd):
                    self._folder.remove(entries_of(name))
                    continue
                log.warning(
                    "%s %s was left by an earlier run", self._label, self._folder.shown([name])
                )
                self._deliver(entries_of(name), unrevised(found), int(found[1].removeprefix("-")))
            finally:
                os.close(fd)

    def _taken(self, name: str) -> int | None:
        """Open a file that was left over; None if it is in use, or cannot be opened."""
        try:
            return self._folder.existing(entries_of(name))
        except (FileExistsError, FileNotFoundError):
            return None
        except (OSError, FilenameError) as error:
            log.error(
                "%s cannot open a file left by an earlier run, leaving it: %s", self._label, error
            )
            return None

    def _repair_end(self, fd: int) -> bool:
        """Repair the file's end so that it ends with a complete message.

        Returns:
            False if no data is left.
        """
        # Only gzip shows where complete data ends. In a plain file, a torn message looks like a
        # complete one without its newline, so nothing of it is removed.
        if self._gzip_level:
            size = whole_gzip(fd)
            os.ftruncate(fd, size)
        else:
            size = os.fstat(fd).st_size
            _end_line(fd, size)
        os.fdatasync(fd)
        return size > 0

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
            # One write for all messages that go to this file, not a system call for each.
            end = at + self._fitting(bodies, at)
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
        if self._fd is None or not self._rotation.interval_ns:
            return math.inf
        return (self._opened_ns + self._rotation.interval_ns) / SECOND

    def tick(self, *, skip_empty_files: bool) -> None:
        """Sync, and open the next file if it is due.

        With ``skip_empty_files`` the next file is opened only when there is a message to write.
        """
        if not (reason := self._outdated()):
            self.sync()
        elif skip_empty_files:
            self.close()
        else:
            self._open_next(reason)

    def close(self) -> None:
        """Sync and close the file, if one is open; the next message opens the next file."""
        if self._fd is None:
            return
        if self._gzip_level and not self._size:
            self._append(b"")  # a file without any member is not valid gzip
        self.sync()
        fd, self._fd = self._fd, None
        os.close(fd)
        if self._finished is not None:
            self._deliver(self._entries, self._name, self._revision)

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        self._size += len(data)
        self.written_bytes += len(data)
        if self._gzip_level:
            if self._member is None:
                self._member = zlib.compressobj(self._gzip_level, wbits=GZIP_WINDOW_BITS)
            data = self._member.compress(data)
        _write(self._fd, data)

    def _fitting(self, bodies: Sequence[bytes], at: int) -> int:
        """Return how many messages go to this file, up to the one that exceeds its limit."""
        if not self._rotation.size:
            return len(bodies) - at
        rest = bodies[at:]
        sizes = accumulate((len(body) + 1 for body in rest), initial=self._size)
        next(sizes)
        for count, size in enumerate(sizes, 1):
            if size > self._rotation.size:
                return count
        return len(rest)

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
        if 0 < self._rotation.interval_ns < age_ns:
            return f"it was opened {format_duration(age_ns)} ago"
        if 0 < self._rotation.size < self._size:
            return f"it is {self._size} bytes long (> {self._rotation.size})"
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
        self._entries = entries_of(with_revision(self._name, self._revision))
        # Checked here to choose a free name early; another process may take it until the file is
        # finished, so _deliver handles that case again.
        if self._finished is not None and self._finished.has(self._entries):
            return None
        # As in NSQ. A gzip file is not continued, because no reader gets past a torn member; nor is
        # a file that is rotated by age, because it is unknown when it was begun.
        is_new = self._gzip_level or self._rotation.interval_ns
        try:
            fd = (self._folder.create if is_new else self._folder.open)(self._entries)
        except FileExistsError:
            return None
        self._size = os.fstat(fd).st_size
        if 0 < self._rotation.size < self._size:
            os.close(fd)
            return None
        self._size += _end_line(fd, self._size)
        return fd

    # Finished files

    def _deliver(self, source: Entries, name: str, revision: int) -> None:
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
            except FileExistsError:
                log.warning("%s %s already exists", self._label, self._finished.shown(target))
                revision = self._next_revision(name, revision)
                target = entries_of(with_revision(name, revision))
            else:
                break
        moved = self._folder.shown(source), self._finished.shown(target)
        log.info("%s moved %s to %s", self._label, *moved)

    def _next_revision(self, name: str, revision: int) -> int:
        if REVISION not in name:
            raise FileExistsError(errno.EEXIST, "its name is in use", self._folder.shown([name]))
        return revision + 1

    def shown(self) -> str:
        """Return the path of the current file, for a person."""
        return self._folder.shown(self._entries)


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


def unrevised(found: re.Match[str]) -> str:
    """Return the matched name of a file (`Template.pattern`) with `<REV>` for its revision."""
    name = found[0]
    # The last group first: a replacement moves everything after it, and the spans are of the whole
    # name before any replacement.
    for group in range(len(found.groups()), 0, -1):
        start, end = found.span(group)
        name = f"{name[:start]}{REVISION}{name[end:]}"
    return name


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
