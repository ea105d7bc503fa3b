"""Reading and rewriting files that may have unreadable pages.

A read that crosses into a bad page fails as a whole. After such a failure the file is read page by
page, so that a bad page costs only the batches in it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final

from sparq.log.disk import PAGE_BYTES, Disk, DiskError, File, FileSystem

PAGE_TRIES: Final = 3
"""Attempts to read a page before it counts as bad: a passing error must not cost a batch."""

WRITE_AGAIN_BYTES: Final = 64 << 10


def write_again(file: File, start: int) -> bool:
    """Rewrite a file's contents from an offset on; return whether the file has to be synced then.

    A killed process may have left data in memory only, and after a failed sync the kernel treats
    such data as written: only what is written again is synced. An unreadable page is left as it is.
    On a read-only disk nothing happens.

    Raises:
        DiskError: it cannot be written.
    """
    try:
        for at in range(start, file.size(), WRITE_AGAIN_BYTES):
            try:
                file.overwrite(file.pread(WRITE_AGAIN_BYTES, at), at)
            except DiskError as error:
                if error.number != errno.EIO or error.operation != "read":
                    raise
                for place, _, data in _pages(file, at, min(at + WRITE_AGAIN_BYTES, file.size())):
                    if data:
                        file.overwrite(data, place)
    except DiskError as error:
        if error.number == errno.EROFS:
            return False
        # A copy-on-write file system may have no space to write the same bytes again.
        if not error.is_full:
            raise
    return True


def read_bytes(file: File, size: int, offset: int) -> bytes:
    """Read these bytes of the file; unreadable pages are returned as zeros.

    Raises:
        DiskError: for any reason other than a bad page.
    """
    try:
        return file.pread(size, offset)
    except DiskError as error:
        if error.number != errno.EIO:
            raise
    pages = _pages(file, offset, offset + size)
    return b"".join([bytes(length) if data is None else data for _, length, data in pages])


def _pages(file: File, offset: int, end: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the part of each page between two offsets: offset, size, bytes; None: unreadable."""
    while offset < end:
        size = min((offset // PAGE_BYTES + 1) * PAGE_BYTES, end) - offset
        data: bytes | None = None
        for _ in range(PAGE_TRIES):
            try:
                data = file.pread(size, offset)
                break
            except DiskError as error:
                if error.number != errno.EIO:
                    raise
        yield offset, size, data
        offset += size


def write_all_again(
    disk: Disk,
    folder: str,
    files: Sequence[tuple[str, int]],
    file_system: FileSystem | None,
    held: File | None = None,
) -> None:
    """Sync the files that a start has found, before anything relies on them.

    The files of one topic are synced one by one; for many topics, one sync of the file system
    follows.

    Args:
        disk, folder: where the files are.
        files: (path, offset): from this offset on, nothing shows that the file was synced.
        file_system: the file system that the caller syncs next: files on it are not synced here;
            None: the caller syncs none.
        held: the one of the files that is open already and stays open.

    Raises:
        DiskError: they cannot be made durable: nothing may rely on them.
    """
    together = file_system is not None and file_system.covers(folder)
    for path, start in files:
        file = held if held and held.path == path else disk.open(path)
        try:
            if write_again(file, start) and not together:
                file.sync()
        finally:
            if file is not held:
                file.close()
    if not together:
        disk.sync_directory(folder)
