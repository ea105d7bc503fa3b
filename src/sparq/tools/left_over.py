"""Files that a killed run has left in the folder of what is being written: they are finished.

1. Only files with a name of the template, and only those that no process has open (`Folder`'s
   owner): somebody who writes such files without owning them must not share the folder.
2. What was synced stays, and with it every message that was finished. A torn message of a plain
   file gets a newline; a gzip file is cut behind its last whole member, which is where its last
   sync ended. What nothing was synced to is removed.
3. A file goes where finished files go, under its name, or the next revision that is free there.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from typing import Final

from sparq.tools.filename import FilenameError, Template, entries
from sparq.tools.folder import Folder

log = logging.getLogger(__name__)

CHUNK_SIZE: Final = 1 << 20
GZIP_WINDOW_BITS: Final = 31
"""zlib's word for a gzip header and trailer around the largest window."""


def finish_left_over(
    template: Template, folder: Folder, finished: Folder, *, is_gzip: bool, label: str
) -> None:
    """Make whole what is left of earlier runs, and move it.

    Args:
        template: what the files are called; the revision has a place in it.
        folder: where they are.
        finished: where they go.
        is_gzip: what they are.
        label: what log lines begin with.

    Raises:
        OSError: a file cannot be written or moved.
    """
    pattern = template.pattern()
    for name in sorted(folder.names()):
        if (found := pattern.fullmatch(name)) is None:
            continue
        if (fd := _taken(name, folder, label)) is None:
            continue
        try:
            size = whole_gzip(fd) if is_gzip else os.fstat(fd).st_size
            _make_whole(fd, size, is_gzip=is_gzip)
            if size:
                target = _move(found, folder, finished)
                log.warning("%s %s was left over, now %s", label, folder.shown([name]), target)
            else:
                folder.remove(entries(name))
        finally:
            os.close(fd)


def _taken(name: str, folder: Folder, label: str) -> int | None:
    """The file, if it is nobody's."""
    try:
        return folder.existing(entries(name))
    except (FileExistsError, FileNotFoundError):
        return None
    except (OSError, FilenameError) as error:
        log.error("%s a file is left where it is: %s", label, error)
        return None


def _make_whole(fd: int, size: int, *, is_gzip: bool) -> None:
    if is_gzip:
        os.ftruncate(fd, size)
    elif size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    os.fdatasync(fd)


def _move(found: re.Match[str], folder: Folder, finished: Folder) -> str:
    """Move it to the first revision that is free; where it is then."""
    name = found[0]
    revision = int(found[1].removeprefix("-"))
    target = name
    while True:
        try:
            finished.move_in(folder, entries(name), entries(target))
        except FileExistsError:
            revision += 1
            target = name
            for group in range(len(found.groups()), 0, -1):
                start, end = found.span(group)
                target = f"{target[:start]}-{revision:06d}{target[end:]}"
        else:
            return finished.shown([target])


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
