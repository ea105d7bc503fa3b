"""What a data path holds beside the topics themselves: its own facts, the folders, the trash.

`sparq.json` has the format's version, the node id, and the index below which none may be given
again: deleted topics retire theirs, lest a topic of the same name repeat an id (decision 2).
It is replaced as a whole: temporary file, sync, rename, sync of the folder.
"""

from __future__ import annotations

from typing import Final

from sparq.log.disk import Disk, DiskError
from sparq.log.facts import FACTS, FORMAT, Facts, FactsError, decode
from sparq.log.ledger_work import with_reserve
from sparq.log.reserve import Purpose, Reserve
from sparq.log.task import TaskKind
from sparq.protocol.names import directory_name, topic_of_directory

TOPICS: Final = "topics"
TRASH: Final = "trash"


class CatalogError(Exception):
    """The data path is not one that this version can open."""


class Catalog:
    """A data path's facts.

    Attributes:
        node_id: what stands in its message ids; the data path's own wins over the option.
        retired_index: no new log may give an index below this.
        reserve: space for a full disk, on which topics must be deletable above all.
    """

    def __init__(self, disk: Disk, data_path: str, node_id: int) -> None:
        self.disk = disk
        self.data_path = data_path
        self.node_id = node_id
        self.retired_index = 0
        self.reserve: Reserve | None = None
        self._trashed = 0

    def load(self) -> None:
        """Read the facts, or begin a new data path.

        Raises:
            DiskError: the data path cannot be read or written.
            CatalogError: a newer version wrote it, or it is damaged.
        """
        disk = self.disk
        for folder in (self.data_path, self._path(TOPICS), self._path(TRASH)):
            disk.make_directory(folder)
        if disk.exists(self._path(FACTS)):
            self._read()
        else:
            self.save(self.facts())

    def _read(self) -> None:
        file = self.disk.open(self._path(FACTS))
        try:
            text = file.pread(file.size(), 0)
        finally:
            file.close()
        try:
            version, self.node_id, self.retired_index = decode(text)
        except FactsError as error:
            raise CatalogError(f"{self._path(FACTS)} is damaged: {error}") from error
        if version != FORMAT:
            raise CatalogError(f"{self._path(FACTS)} has format {version}, this is {FORMAT}")

    def facts(self) -> bytes:
        """What `sparq.json` is to hold."""
        return Facts(FORMAT, self.node_id, self.retired_index).encode()

    def save(self, facts: bytes) -> None:
        """Write the facts, all or nothing."""
        disk, temporary = self.disk, self._path(FACTS + ".new")
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = with_reserve(self.reserve, lambda: disk.create(temporary), Purpose.CATALOG)
        try:
            with_reserve(self.reserve, lambda: file.append([facts], 0), Purpose.CATALOG)
            file.sync()
        finally:
            file.close()
        disk.rename(temporary, self._path(FACTS))
        disk.sync_directory(self.data_path)

    def topic_names(self) -> list[str]:
        """The topics that have a folder."""
        names = map(topic_of_directory, self.disk.listdir(self._path(TOPICS)))
        return sorted(name for name in names if name is not None)

    def folder(self, topic_name: str) -> str:
        """Where a topic's files are."""
        return f"{self._path(TOPICS)}/{directory_name(topic_name)}"

    def make_folder(self, topic_name: str) -> str:
        """The folder of a topic, which is there for good when this returns."""
        folder = self.folder(topic_name)
        if not self.disk.exists(folder):
            self.disk.make_directory(folder)
            self.disk.sync_directory(self._path(TOPICS))
        return folder

    def trash_folder(self) -> str:
        """A new name in the trash."""
        taken = set(self.disk.listdir(self._path(TRASH)))
        while (name := f"{self._trashed:08x}") in taken:
            self._trashed += 1
        self._trashed += 1
        return f"{self._path(TRASH)}/{name}"

    def trashed(self) -> list[str]:
        """What an earlier run has left in the trash."""
        trash = self._path(TRASH)
        return [f"{trash}/{name}" for name in self.disk.listdir(trash)]

    def _path(self, name: str) -> str:
        return f"{self.data_path}/{name}"


class Removal:
    """Work: a topic's folder goes to the trash and is emptied there; its indexes are retired."""

    kind = TaskKind.HOUSEKEEPING

    def __init__(self, catalog: Catalog, folder: str, *, in_trash: bool = False) -> None:
        self.error: DiskError | None = None
        self._catalog = catalog
        self._facts = catalog.facts()
        self._folder = folder
        self._in_trash = in_trash

    def run(self) -> None:
        """The facts first: once the folder is gone nothing else tells its indexes."""
        try:
            folder = self._folder
            if not self._in_trash:
                folder = self._discard()
            for name in self._catalog.disk.listdir(folder):
                self._catalog.disk.unlink(f"{folder}/{name}")
            self._catalog.disk.remove_directory(folder)
        except DiskError as error:
            self.error = error

    def _discard(self) -> str:
        catalog = self._catalog
        catalog.save(self._facts)
        target = catalog.trash_folder()
        catalog.disk.rename(self._folder, target)
        catalog.disk.sync_directory(f"{catalog.data_path}/{TOPICS}")
        catalog.disk.sync_directory(f"{catalog.data_path}/{TRASH}")
        return target
