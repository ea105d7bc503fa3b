"""Files with unreadable pages: what is read and rewritten around them."""

from __future__ import annotations

import errno

import pytest

from sparq.log.bad_pages import PAGE_TRIES, WRITE_AGAIN_BYTES, read_bytes, write_again
from sparq.log.disk import PAGE_BYTES, DiskError
from sparq.testing import ManualClock, MemoryDisk, MemoryFile
from tests.log.log_operations import open_log, publish

PATH = "/file"


class BadPages:
    """Makes reads of some pages of a file fail.

    Attributes:
        pages: their numbers.
        failures: the number of failing reads left; None: all fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: str, *pages: int) -> None:
        self.pages = pages
        self.failures: int | None = None
        self.number = errno.EIO
        read = MemoryFile.pread

        def pread(file: MemoryFile, size: int, offset: int) -> bytes:
            end = min(offset + size, file.size())
            if file.path == path and any(self._is_hit(page, offset, end) for page in self.pages):
                raise DiskError("read", path, self.number)
            return read(file, size, offset)

        monkeypatch.setattr(MemoryFile, "pread", pread)

    def _is_hit(self, page: int, offset: int, end: int) -> bool:
        if self.failures == 0 or not offset < (page + 1) * PAGE_BYTES or end <= page * PAGE_BYTES:
            return False
        if self.failures is not None:
            self.failures -= 1
        return True


def file_of(size: int) -> MemoryFile:
    """A file of this size without zeros."""
    file = MemoryDisk().create(PATH)
    assert isinstance(file, MemoryFile)
    file.append([b"\xff" * size], 0)
    return file


@pytest.mark.parametrize("offset", [0, PAGE_BYTES, PAGE_BYTES + 512, 3 * PAGE_BYTES - 8])
def test_only_the_bad_page_is_read_as_zeros(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the pages before and after it are read, wherever the read begins."""
    file = file_of(10 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 3)

    found = read_bytes(file, 8 * PAGE_BYTES, offset)

    zeros = [at + offset for at, byte in enumerate(found) if not byte]
    assert list(range(3 * PAGE_BYTES, 4 * PAGE_BYTES)) == zeros
    assert min(8 * PAGE_BYTES, 10 * PAGE_BYTES - offset) == len(found)


def test_a_passing_error_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is tried several times before it counts as bad."""
    file = file_of(3 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 1).failures = PAGE_TRIES

    assert b"\xff" * (3 * PAGE_BYTES) == read_bytes(file, 3 * PAGE_BYTES, 0)


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only EIO stands for a bad page."""
    file = file_of(3 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 1).number = errno.EACCES

    for call in (lambda: read_bytes(file, 3 * PAGE_BYTES, 0), lambda: write_again(file, 0)):
        with pytest.raises(DiskError, match="permission denied"):
            call()


def test_all_readable_pages_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages next to a bad one are rewritten, too: only then a sync reports their loss."""
    size = 3 * WRITE_AGAIN_BYTES + 100
    file = file_of(size)
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(
        MemoryFile, "overwrite", lambda _, data, at: written.append((at, at + len(data)))
    )
    bad = WRITE_AGAIN_BYTES // PAGE_BYTES + 4
    BadPages(monkeypatch, PATH, bad)

    assert write_again(file, 8)

    places = {at for begin, end in written for at in range(begin, end)}
    assert set(range(8, size)) - places == set(range(bad * PAGE_BYTES, (bad + 1) * PAGE_BYTES))
    assert max(places) == size - 1


def test_a_bad_page_costs_the_batches_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the pages before and after it are read (P8), although batches are not aligned."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock)
    places: dict[int, tuple[int, int]] = {}
    for _ in range(40):
        begin = log.active.segment.size if log.active is not None else 0
        index = publish(log, [b"x" * 900], clock)
        assert log.active is not None
        places[index] = (begin, log.active.segment.size)
    path, first = log.active.segment.path, min(places)
    log.close()
    log = open_log(disk, clock)
    BadPages(monkeypatch, path, 3)

    read = log.load(first)
    read.run()

    found = {at for piece in read.pieces for at in range(piece.extent.first, piece.extent.end)}
    hit = {
        index
        for index, (begin, end) in places.items()
        if begin < 4 * PAGE_BYTES and end > 3 * PAGE_BYTES
    }
    assert 0 < len(hit) < 10
    assert places.keys() - hit == found
