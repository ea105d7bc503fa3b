"""The files that one topic's messages are written to, one after another.

1. What was written is on the disk when `sync` or `close` has returned, its name too. Whoever
   finishes messages does so behind that, never before.
2. A file is left for the next one when its name has changed (the date in it), when it is larger
   than `rotate_size`, or when it is older than `rotate_interval`. That is looked at before each
   message is written.
3. With gzip each `sync` ends a gzip member, so that what is synced can be read whatever happens to
   the rest; a file holds many members, as gzip allows.
4. A file that may be one of several with the same name is new, always: where a name is in use, here
   or where the file will go, the revision counts on. Otherwise an existing file is continued; when
   a kill has left it without a newline at its end, one is written first, so that nothing is glued
   to the torn message.
5. A finished file is moved to the folder `finished`, if that is another one than it was written in,
   under its name or the next revision that is free there.
6. What a killed run has left is made whole and moved there, too: files with a name of the template
   that no process has open (`Folder`'s owner). What was synced stays, and with it every message
   that was finished. A torn message of a plain file gets a newline; a gzip file is cut behind its
   last whole member, where its last sync ended; a file that nothing was synced to is removed.
7. Calls block, and only one may run at a time. After an error the output is of no more use.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Final

from sparq.protocol.durations import format_duration
from sparq.tools.filename import REVISION, FilenameError, Template, entries, with_revision
from sparq.tools.folder import Entries, Folder

log = logging.getLogger(__name__)

NEWLINE: Final = b"\n"
CHUNK_SIZE: Final = 1 << 20
GZIP_WINDOW_BITS: Final = 31
"""zlib's word for a gzip header and trailer around the largest window."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is left for the next one; 0 of either: not for that reason.

    Attributes:
        size: bytes before compression.
        interval_ns: nanoseconds since the file was opened.
    """

    size: int = 0
    interval_ns: int = 0


class Output:
    """The files of one topic.

    Args:
        template: what they are called.
        folder: where they are written.
        finished: where they go when they are done; None: they stay.
        rotation: when the next one is begun.
        gzip_level: 1 to 9; 0: no gzip.
        label: what log lines begin with.

    Attributes:
        files: how many were opened.
        written_bytes: what was written to them, before compression.
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

    def finish_left_over(self) -> None:
        """Make whole what a killed run has left where files are written, and move it (rule 6)."""
        if self._finished is None:
            return
        pattern = self._template.pattern()
        for name in sorted(self._folder.names()):
            if (found := pattern.fullmatch(name)) is None or (fd := self._taken(name)) is None:
                continue
            try:
                if not self._is_whole(fd):
                    self._folder.remove(entries(name))
                    continue
                log.warning("%s %s was left over", self._label, self._folder.shown([name]))
                self._deliver(entries(name), unrevised(found), int(found[1].removeprefix("-")))
            finally:
                os.close(fd)

    def _taken(self, name: str) -> int | None:
        """A file that was left over, if it is nobody's."""
        try:
            return self._folder.existing(entries(name))
        except (FileExistsError, FileNotFoundError):
            return None
        except (OSError, FilenameError) as error:
            log.error("%s a file is left where it is: %s", self._label, error)
            return None

    def _is_whole(self, fd: int) -> bool:
        """Have a file end with whole messages; False: there are none in it."""
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
        """Write messages, each with a newline behind it.

        Args:
            bodies: the messages.
            sync: whether all that was written is to be on the disk.
        Returns:
            Whether all that was ever written is on the disk: also when a file was left.
        Raises:
            OSError, FilenameError: something could not be written; what is on the disk is unknown.
        """
        at = 0
        while at < len(bodies):
            if reason := self._outdated():
                self._open_next(reason)
                sync = True
            end = at + self._fitting(bodies, at)
            self._append(NEWLINE.join(bodies[at:end]) + NEWLINE)
            at = end
        if sync:
            self.sync()
        return sync

    def sync(self) -> None:
        """Have all that was written on the disk."""
        if self._fd is None:
            return
        if self._member is not None:
            _write(self._fd, self._member.flush())
            self._member = None
        os.fdatasync(self._fd)

    def tick(self, *, skip_empty_files: bool) -> None:
        """Sync, and look whether it is time for the next file.

        That is opened at once, or, to skip empty files, when there is something to be written.
        """
        if not (reason := self._outdated()):
            self.sync()
        elif skip_empty_files:
            self.close()
        else:
            self._open_next(reason)

    def close(self) -> None:
        """Sync and leave the file, if one is open; the next message opens the next."""
        if self._fd is None:
            return
        if self._gzip_level and not self._size:
            self._append(b"")  # no file at all is gzip without a member
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
        """How many of the messages go to this file: up to the one that makes it too large."""
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
        """Why the next file is due; empty when it is not."""
        if self._fd is None:
            return "no file is open"
        if (name := self._name_now()) != self._name:
            return f"its name is now {name}"
        age_ns = time.monotonic_ns() - self._opened_ns
        if 0 < self._rotation.interval_ns < age_ns:
            return f"it was opened {format_duration(age_ns)} ago"
        if 0 < self._rotation.size < self._size:
            return f"it has {self._size} bytes (> {self._rotation.size})"
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
                "%s %s: the %d revisions before this are in use",
                self._label,
                self.shown(),
                self._revision - first,
            )
        self._fd = fd
        self.files += 1
        log.info("%s opening %s", self._label, self.shown())

    def _try_to_open(self) -> int | None:
        """The file of this revision; None when its name is in use, or it is large already."""
        self._entries = entries(with_revision(self._name, self._revision))
        if self._finished is not None and self._finished.has(self._entries):
            return None
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
        """Move a file that is done; to the next revision that is free, if it must be.

        Args:
            source: the file.
            name: what it is called, with the place of the revision still in it.
            revision: that of the file.
        """
        assert self._finished is not None
        target = source
        while True:
            try:
                self._finished.move_in(self._folder, source, target)
            except FileExistsError:
                log.warning("%s %s is there already", self._label, self._finished.shown(target))
                revision = self._next_revision(name, revision)
                target = entries(with_revision(name, revision))
            else:
                break
        moved = self._folder.shown(source), self._finished.shown(target)
        log.info("%s moved %s to %s", self._label, *moved)

    def _next_revision(self, name: str, revision: int) -> int:
        if REVISION not in name:
            raise FileExistsError(errno.EEXIST, "its name is in use", self._folder.shown([name]))
        return revision + 1

    def shown(self) -> str:
        """Where it writes, for a person."""
        return self._folder.shown(self._entries)


def _write(fd: int, data: bytes) -> None:
    """Write all of it: in one piece, unless the disk has no room for that."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _end_line(fd: int, size: int) -> int:
    """Write a newline behind a torn message at the end of a file; how many bytes that were."""
    if not size or os.pread(fd, 1, size - 1) == NEWLINE:
        return 0
    _write(fd, NEWLINE)
    return len(NEWLINE)


def unrevised(found: re.Match[str]) -> str:
    """The name of a file that `Template.pattern` has matched, with the places of its revision."""
    name = found[0]
    for group in range(len(found.groups()), 0, -1):
        start, end = found.span(group)
        name = f"{name[:start]}{REVISION}{name[end:]}"
    return name


def whole_gzip(fd: int) -> int:
    """The size of the whole members that a gzip file begins with."""
    at = whole = 0
    member = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    while data := os.pread(fd, CHUNK_SIZE, at):
        try:
            member.decompress(data, CHUNK_SIZE)
        except zlib.error:
            break
        at += len(data) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            whole = at
            member = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    return whole
