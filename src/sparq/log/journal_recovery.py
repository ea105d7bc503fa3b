"""What journals hold is put back into the files it is of, before anybody reads those.

It is done again at every start until it has worked for all files: the same bytes go to the same
places. A topic whose file cannot be written is not to be opened, and the journals are kept.
"""

from dataclasses import dataclass, field

from sparq.log import ledger_file
from sparq.log.disk import Disk, DiskError, File
from sparq.log.journal import Entry, Journal, decode, number_of
from sparq.log.scan import read_bytes
from sparq.log.segment import DATA_START, NEXT, SUFFIX, decode_header


@dataclass(slots=True)
class PutBack:
    """What came of it.

    Attributes:
        batches: how many were missing and are there again.
        report: what an operator should read.
        refused: folders, relative to the data path, with a file that could not be written, and why.
    """

    batches: int = 0
    report: list[str] = field(default_factory=list)
    refused: dict[str, DiskError] = field(default_factory=dict)


def found(disk: Disk, data_path: str) -> list[int]:
    """The numbers of the journals that an earlier run has left.

    Raises:
        DiskError: the data path cannot be read.
    """
    numbers = map(number_of, disk.listdir(data_path))
    return sorted(number for number in numbers if number is not None)


def recover(disk: Disk, data_path: str, journal: Journal) -> PutBack:
    """Put back what journals hold and delete them.

    Raises:
        DiskError: a journal cannot be read.
    """
    outcome = PutBack()
    numbers = found(disk, data_path)
    for (path, salt), entries in _by_file(disk, numbers, journal, outcome).items():
        folder = path.rpartition("/")[0]
        try:
            outcome.batches += _put_back(disk, f"{data_path}/{path}", salt, entries)
        except DiskError as error:
            outcome.refused[folder] = error
    if outcome.batches:
        outcome.report.append(f"{outcome.batches} batches were put back from the journal")
    if numbers and outcome.refused:
        outcome.report.append(f"{data_path}: the journals are kept for the topics not opened")
        journal.continue_from(numbers[-1])
    elif numbers:
        journal.number = numbers[-1]
        journal.clean(numbers[-1])
    return outcome


def _by_file(
    disk: Disk, numbers: list[int], journal: Journal, outcome: PutBack
) -> dict[tuple[str, int], list[Entry]]:
    """All entries by (path, salt), in the order in which they were written."""
    entries: dict[tuple[str, int], list[Entry]] = {}
    for number in numbers:
        contents = ledger_file.read(disk, journal.path(number))
        for block in contents.blocks:
            for entry in decode(block):
                entries.setdefault((entry.path, entry.salt), []).append(entry)
        if contents.damaged_bytes or (contents.header is None and contents.size > DATA_START):
            lost = contents.damaged_bytes or contents.size
            outcome.report.append(f"{journal.path(number)}: {lost} damaged bytes")
    return entries


def _put_back(disk: Disk, path: str, salt: int, entries: list[Entry]) -> int:
    """Write all to the file, and sync it; how many batches it did not have."""
    file = _file(disk, path, salt)
    if file is None:
        # Dropped since: every channel had finished it, or the topic was deleted.
        return 0
    missing = 0
    try:
        for entry in entries:
            missing += read_bytes(file, len(entry.data), entry.offset) != entry.data
            # Even what can be read: it may be there in memory alone, where no sync would tell.
            file.overwrite(entry.data, entry.offset)
        file.sync()
    finally:
        file.close()
    return missing


def _file(disk: Disk, path: str, salt: int) -> File | None:
    """The segment with this salt: it may have lost its newest name in the crash."""
    folder, _, name = path.rpartition("/")
    if not disk.exists(folder):
        return None
    others = (other for other in disk.listdir(folder) if other.endswith((SUFFIX, NEXT)))
    for candidate in sorted(others, key=lambda other: other != name):
        file = disk.open(f"{folder}/{candidate}")
        header = decode_header(read_bytes(file, DATA_START, 0), candidate)
        if header is not None and header.salt == salt:
            return file
        file.close()
    return None
