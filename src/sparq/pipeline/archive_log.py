"""The archive's log of live files: `archive/_spark_metadata`, in the format of Spark's file sink.

    _spark_metadata/41.compact      "v1", then a JSON object for each live file

Each commit is one new file that names all live files. So it takes effect for readers as a whole, at
the moment when the file is created. Spark uses the log by itself when it reads the folder.

1. Commits are numbered without gaps. Two consecutive ones tell Spark that each one is complete.
2. A commit never replaces a file: the second of two writers gets an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparq.pipeline.hadoop_files import FileStatus

if TYPE_CHECKING:
    from sparq.pipeline.hadoop_files import HadoopFiles

FOLDER = "_spark_metadata"
COMMITS_KEPT = 20  # for readers that have listed a commit but not read it yet

_VERSION = "v1"
_COMPLETE = ".compact"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live files after a commit; number -1 means an archive without commits."""

    number: int = -1
    files: tuple[FileStatus, ...] = ()
    is_complete: bool = field(default=True, compare=False)  # False: Spark's sink wrote it

    def changed(
        self, removed: Iterable[FileStatus] = (), added: Iterable[FileStatus] = ()
    ) -> tuple[FileStatus, ...]:
        """The files without the removed ones and with the added ones."""
        gone = {one.uri for one in removed}
        return (*(one for one in self.files if one.uri not in gone), *added)


class ArchiveLog:
    """The commits of one archive.

    Args:
        files: the file system.
        root: the archive's folder.
    """

    def __init__(self, files: HadoopFiles, root: str) -> None:
        self._files = files
        self._folder = f"{root.rstrip('/')}/{FOLDER}"

    def read(self) -> Snapshot:
        """Read the live files.

        Raises:
            FileNotFoundError: a part of the log is missing.
        """
        names = [one.name for one in self._files.list(self._folder)]
        try:
            return self._snapshot(names)
        except FileNotFoundError:
            # Another writer has since made enough commits that this one was deleted: list once
            # more.
            return self._snapshot([one.name for one in self._files.list(self._folder)])

    def _snapshot(self, names: list[str]) -> Snapshot:
        parts = parts_of(names)
        found = [decoded(self._files.read(f"{self._folder}/{name}")) for name in parts]
        files = tuple(file for part in found for file in part)
        number = max(map(_number, parts), default=-1)
        return Snapshot(number, files, len(parts) < 2 and all(map(_is_complete, parts)))

    def commit(self, before: Snapshot, files: tuple[FileStatus, ...]) -> Snapshot:
        """Make these files the live ones.

        Raises:
            FileExistsError: another writer has committed since `before` was read.
        """
        after = self._put(before.number + 1, files)
        if not before.is_complete:
            # After commits of Spark's own sink, a single complete one looks like the end of an
            # interval.
            after = self._put(after.number + 1, files)
        if after.number >= COMMITS_KEPT:
            self._files.delete(self._address(after.number - COMMITS_KEPT))
        return after

    def _put(self, number: int, files: tuple[FileStatus, ...]) -> Snapshot:
        self._files.create(self._address(number), encoded(files))
        return Snapshot(number, files)

    def _address(self, number: int) -> str:
        return f"{self._folder}/{number}{_COMPLETE}"


def parts_of(names: Iterable[str]) -> list[str]:
    """The files of a log that form the newest snapshot, oldest first, given all names.

    If sparq wrote the log, this is one file; Spark's own sink writes small ones in between.
    """
    numbers = {_number(name): name for name in sorted(names) if _number(name) >= 0}
    complete = max((n for n, name in numbers.items() if _is_complete(name)), default=-1)
    return [name for number, name in sorted(numbers.items()) if number >= complete]


def encoded(files: Iterable[FileStatus]) -> bytes:
    """Encode a commit in the form of Spark's file sink."""
    lines = (json.dumps(_as_json(one), separators=(",", ":")) for one in files)
    return "\n".join((_VERSION, *lines)).encode()


def decoded(content: bytes) -> list[FileStatus]:
    """Decode the files of a commit.

    Raises:
        ValueError: the commit has another version.
    """
    version, *lines = content.decode().splitlines()
    if version != _VERSION:
        raise ValueError(
            f"the archive's log has version {version}, this sparq reads version {_VERSION}:"
            " continue with the sparq that wrote it"
        )
    found = (json.loads(line) for line in lines if line)
    return [
        FileStatus(
            one["path"],
            one["size"],
            one["modificationTime"],
            one["blockReplication"],
            one["blockSize"],
        )
        for one in found
    ]


def _as_json(file: FileStatus) -> dict[str, Any]:
    return {
        "path": file.uri,
        "size": file.size,
        "isDir": False,
        "modificationTime": file.modified_ms,
        "blockReplication": file.replication,
        "blockSize": file.block_size,
        "action": "add",
    }


def _is_complete(name: str) -> bool:
    return name.endswith(_COMPLETE)


def _number(name: str) -> int:
    """The number of a commit; -1 for other files, such as checksums."""
    number = name.removesuffix(_COMPLETE)
    return int(number) if number.isdecimal() else -1
