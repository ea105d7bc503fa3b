"""The files and folders of a data path outside its topics: facts, settings and trash.

`sparq.json` has the format version, the node id, and the retired index: no index below it may be
used again. Deleted topics retire their indexes, so that a new topic of the same name never repeats
an id. The file is replaced as a whole: temporary file, sync, rename, sync of the
folder. Until then, the name of a deleted topic's folder in the trash holds the index: so deleting
needs no space.

Some folders cannot be renamed into the trash: those in the lower layer of an overlay, or any on a
disk that refuses to rename. Then an empty folder in the trash, whose name ends with the topic's
folder, records that the topic is deleted, and its files are deleted where they are. A start
completes that.

`policies.json` and `drain.json` (see `policies` and `draining`) are replaced in the same way.

`Checkpoints` syncs the files of topics whose commits shared a sync in a journal, so that old
journals can be deleted:

1. A checkpoint begins when a journal has ended, because the next one has begun or the journal
   failed. All commits of that journal have been taken over by then, since they are taken over in
   the order in which they ran.
2. It syncs a few files at a time, each in the thread that commits, so that a publish waits for
   those few syncs at most.
3. A topic with a commit in flight syncs its file with the next one. A failed sync is retried;
   until all files are synced their journal stays, and no third journal is begun.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from sparq.broker.health import Trouble
from sparq.broker.options import NEVER
from sparq.broker.topic import Topic
from sparq.broker.turn import Ticket, TopicTask, Turn
from sparq.log.commit import Commit
from sparq.log.disk import Disk, DiskError, FileSystem
from sparq.log.journal import Journal
from sparq.log.metadata import FACTS, FORMAT, DataPathMetadata, MetadataError, decode
from sparq.log.reserve import BLOCK_BYTES, Purpose, Reserve, with_reserve
from sparq.log.task import FunctionTask, Task
from sparq.options.units import MILLISECOND
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant
from sparq.protocol.names import directory_name, topic_of_directory

TOPICS: Final = "topics"
TRASH: Final = "trash"
PROBE: Final = "probe"

Result = TypeVar("Result")


class CatalogError(Exception):
    """This version cannot open the data path."""


class Catalog:
    """The facts stored in a data path, and its folders.

    Attributes:
        node_id: the node id in its message ids; the one in the data path overrides the option.
        retired_index: no new log may use an index below this.
        reserve: space kept so that topics can be deleted on a full disk.
    """

    def __init__(self, disk: Disk, data_path: str, node_id: int) -> None:
        self.disk = disk
        self.data_path = data_path
        self.node_id = node_id
        self.retired_index = 0
        self.reserve: Reserve | None = None
        self._trashed = 0
        self._are_folders_synced = False

    def load(self) -> None:
        """Read the facts, or initialize a new data path.

        Raises:
            DiskError: the data path cannot be read or written.
            CatalogError: it was written by a newer version, or it is damaged.
        """
        disk = self.disk
        for folder in (self.data_path, self._path(TOPICS), self._path(TRASH)):
            disk.make_directory(folder)
        # An earlier run may have been killed after making a topic's folder, before syncing it.
        self._sync_folders()
        if disk.exists(self._path(FACTS)):
            try:
                version, self.node_id, self.retired_index = decode(self._contents(FACTS))
            except MetadataError as error:
                raise CatalogError(f"{self._path(FACTS)} is damaged: {error}") from error
            if version != FORMAT:
                found = f"{self._path(FACTS)} has format {version}"
                raise CatalogError(f"{found}, but this version reads format {FORMAT}")
        else:
            self.save_facts()
        for name in disk.listdir(self._path(TRASH)):
            self.retired_index = max(self.retired_index, retired_index_of(name))
        self._complete_deletions()

    def read_file(self, name: str, decode: Callable[[bytes], Result], what: str) -> Result | None:
        """Read a file that `save_file` has written; None: there is none.

        Raises:
            DiskError: it cannot be read.
            CatalogError: `decode` refuses it with a ValueError. A start without it would be unsafe.
        """
        if not self.disk.exists(self._path(name)):
            return None
        try:
            return decode(self._contents(name))
        except ValueError as error:
            raise CatalogError(
                f"{self._path(name)} cannot be used: {error}. Move it away to start without {what}"
            ) from error

    def _contents(self, name: str) -> bytes:
        file = self.disk.open(self._path(name))
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def save_file(self, name: str, text: bytes | None) -> None:
        """Replace a file atomically; None: delete it."""
        if text is not None:
            self._replace(name, text)
            return
        if self.disk.exists(self._path(name)):
            self.disk.unlink(self._path(name))
        # Sync even if the file is gone: the sync of an earlier attempt may have failed, and then a
        # power cut would bring the file back.
        self.disk.sync_directory(self.data_path)

    def save_facts(self) -> None:
        """Replace `sparq.json` atomically."""
        facts = DataPathMetadata(FORMAT, self.node_id, self.retired_index)
        self._replace(FACTS, facts.encode())

    def _replace(self, name: str, text: bytes) -> None:
        disk, temporary = self.disk, self._path(name + ".new")
        # Left by an attempt that failed or was killed; `create` refuses an existing file.
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = self.with_reserve(lambda: disk.create(temporary))
        try:
            self.with_reserve(lambda: file.append([text], 0))
            file.sync()
        finally:
            file.close()
        # Only after the sync: a power cut could otherwise leave the new name without its contents.
        self.with_reserve(lambda: disk.rename(temporary, self._path(name)))
        disk.sync_directory(self.data_path)

    def with_reserve(self, work: Callable[[], Result]) -> Result:
        """Do something that needs a block; on a full disk, with one of the reserve."""
        return with_reserve(work, self.reserve, BLOCK_BYTES, Purpose.CATALOG)

    def probe(self, size_bytes: int) -> None:
        """Store a file of this size as a topic's messages are stored, and delete it.

        Raises:
            DiskError: a publish would fail, too.
        """
        disk, path = self.disk, self._path(PROBE)
        if disk.exists(path):
            disk.unlink(path)  # left by an attempt that failed or was killed
        file = disk.create(path)
        try:
            file.reserve(size_bytes)
            file.append([bytes(BLOCK_BYTES)], 0)
            file.sync()
            disk.sync_directory(self.data_path)
        finally:
            file.close()
            disk.unlink(path)

    def topic_names(self) -> list[str]:
        """The topics that have a folder, sorted by name."""
        names = map(topic_of_directory, self.disk.listdir(self._path(TOPICS)))
        return sorted(name for name in names if name is not None)

    def topics_file_system(self) -> FileSystem | None:
        """The file system of the topics' folders; None: it cannot be synced as a whole."""
        return self.disk.file_system(self._path(TOPICS))

    def folder(self, topic_name: str) -> str:
        """The path of a topic's folder."""
        return f"{self._path(TOPICS)}/{directory_name(topic_name)}"

    def make_folder(self, topic_name: str) -> str:
        """Create a topic's folder unless it exists; it is durable when this returns."""
        folder = self.folder(topic_name)
        if not self.disk.exists(folder):
            self._are_folders_synced = False
            self.disk.make_directory(folder)
        # A folder that exists may be lost in a power cut: an earlier sync may have failed after the
        # folder was made. A topic with acknowledged messages would go with it.
        if not self._are_folders_synced:
            self._sync_folders()
        return folder

    def _complete_deletions(self) -> None:
        """Delete the marked folders, then their marks: one that stays would delete a new topic."""
        disk, trash = self.disk, self._path(TRASH)
        marks = [name for name in disk.listdir(trash) if marked_folder(name)]
        for mark in marks:
            self.remove_folder(f"{self._path(TOPICS)}/{marked_folder(mark)}")
        if marks:
            self.save_facts()  # the marks have held the retired index
        for mark in marks:
            disk.remove_directory(f"{trash}/{mark}")
        if marks:
            disk.sync_directory(trash)

    def remove_folder(self, folder: str) -> None:
        """Delete a topic's folder where it is, durably, if it is there.

        Raises:
            DiskError: it still exists, perhaps without some of its files.
        """
        if self.disk.exists(folder):
            for name in self.disk.listdir(folder):
                self.disk.unlink(f"{folder}/{name}")
            self.disk.sync_directory(folder)
            self.disk.remove_directory(folder)
        self.disk.sync_directory(self._path(TOPICS))

    def forget_folder(self, topic_name: str) -> None:
        """Remove the folder of a topic that could not be created, if it is empty."""
        with suppress(DiskError):
            self.disk.remove_directory(self.folder(topic_name))

    def _sync_folders(self) -> None:
        """Make the names of the topics' folders durable."""
        self.disk.sync_directory(self._path(TOPICS))
        self._are_folders_synced = True

    def trash_folder(self, retired_index: int) -> str:
        """A new path in the trash; its name contains the retired index."""
        taken = {name.partition("-")[0] for name in self.disk.listdir(self._path(TRASH))}
        while (number := f"{self._trashed:08x}") in taken:
            self._trashed += 1
        self._trashed += 1
        return f"{self._path(TRASH)}/{number}-{retired_index:x}"

    def trashed(self) -> list[str]:
        """Folders that an earlier run has left in the trash."""
        trash = self._path(TRASH)
        return [f"{trash}/{name}" for name in self.disk.listdir(trash)]

    def _path(self, name: str) -> str:
        return f"{self.data_path}/{name}"


def retired_index_of(name: str) -> int:
    """The retired index in the name of a trash folder; 0: none, from an older version."""
    try:
        return int(name.split("-", 2)[1], 16)
    except (ValueError, IndexError):
        return 0


def marked_folder(name: str) -> str:
    """The folder of a topic that a trash folder marks as deleted; "": it marks none."""
    return "".join(name.split("-", 2)[2:])


class Removal(Task):
    """A task: moves a topic's folder to the trash, empties it and retires the topic's indexes.

    Attributes:
        is_deleted: whether the topic is durably deleted, though files may remain in the trash.
    """

    def __init__(self, catalog: Catalog, folder: str, *, in_trash: bool = False) -> None:
        self._catalog = catalog
        # Taken here, in the event loop: `run` is in a thread.
        self._retired_index = catalog.retired_index
        self.is_deleted = in_trash
        self._folder = folder
        self._mark = ""

    def execute(self) -> None:
        """Save the facts before the folder is removed: until then its name holds the index.

        May be run again after an error.
        """
        self.error = None
        catalog = self._catalog
        if not self.is_deleted:
            self._discard()
        if self._mark:
            self._remove_in_place()
            return
        # In a thread: deleting 100 MB takes 150 to 230 ms.
        for name in catalog.disk.listdir(self._folder):
            catalog.disk.unlink(f"{self._folder}/{name}")
        # The facts of now, not those of the deletion: after a failure this runs again, and
        # another topic, with higher indexes, may have been deleted in between.
        catalog.save_facts()
        catalog.disk.remove_directory(self._folder)

    def _discard(self) -> None:
        """Move the folder to the trash; this is possible even on a full disk."""
        catalog = self._catalog
        trash = f"{catalog.data_path}/{TRASH}"
        if not self._folder.startswith(f"{trash}/") and not self._mark:
            target = catalog.trash_folder(self._retired_index)
            try:
                catalog.with_reserve(lambda: catalog.disk.rename(self._folder, target))
            except DiskError as error:
                if error.is_missing:
                    raise
                # Kept from here on: the folder may lose files at once.
                self._mark = f"{target}-{self._folder.rpartition('/')[2]}"
                return
            self._folder = target
        if not self._mark:
            # Even if an earlier attempt has renamed the folder: its syncs may have failed.
            catalog.disk.sync_directory(f"{catalog.data_path}/{TOPICS}")
            catalog.disk.sync_directory(trash)
            self.is_deleted = True

    def _remove_in_place(self) -> None:
        """Delete a folder that cannot be renamed; its name is free only after its mark is gone."""
        catalog, disk = self._catalog, self._catalog.disk
        trash = f"{catalog.data_path}/{TRASH}"
        try:
            disk.make_directory(self._mark)
            disk.sync_directory(trash)
        except DiskError as error:
            # A disk that has no space even for the mark gets some from what is deleted.
            if not error.is_full:
                raise
        catalog.remove_folder(self._folder)
        catalog.save_facts()
        if disk.exists(self._mark):
            disk.remove_directory(self._mark)
        disk.sync_directory(trash)
        self.is_deleted = True


class SaveTask(Task):
    """A task: writes a file of the data path that an administrator's request changes."""

    def __init__(self, save: Callable[[], None], what: str) -> None:
        self._save = save
        self._what = what

    def execute(self) -> None:
        """Replace the file."""
        self._save()

    def report(self, turn: Turn[Any], ticket: Ticket) -> None:
        """Answer the request after the task has run."""
        if (error := self.error) is None:
            turn.health.recover(Trouble.SAVE)
            turn.published.append((ticket, None))
        else:
            note = f"writing {self._what} failed: {error}"
            turn.health.fail(Trouble.SAVE, "", note, error)
            turn.published.append((ticket, RemoteError("INTERNAL_ERROR", error.reason)))


AT_A_TIME: Final = 8
"""Maximum number of files being synced at a time."""
RETRY_NS: Final = 50 * MILLISECOND


class Checkpoints:
    """Checkpoints of one broker's journal.

    Attributes:
        ended: number of the newest journal to which no commit goes any more.
        due_ns: when (mono ns) failed syncs are retried; NEVER: there are none.
    """

    def __init__(self, journal: Journal, topics: dict[str, Topic], turn: Turn[Topic]) -> None:
        self.ended = 0
        self.due_ns = NEVER
        self._journal = journal
        self._topics = topics
        self._turn = turn
        self._limit = 0
        self._waiting: list[Topic] = []
        self._again: list[Topic] = []
        self._under_way = 0

    def begin(self, ended: int, now: Instant) -> None:
        """Have the journals up to number `ended` deleted, after syncing the topics' files."""
        self.ended = ended
        # One at a time: `finish` begins the next one.
        if self._limit or ended <= self._journal.cleaned:
            return
        self._limit = ended
        self._waiting = [topic for topic in self._topics.values() if self._concerns(topic)]
        self._sync_next(now)

    def on_time(self, now: Instant) -> None:
        """Retry the topics that could not be synced."""
        self.due_ns = NEVER
        self._waiting, self._again = self._again, []
        self._sync_next(now)

    def is_clean(self) -> bool:
        """Whether everything in the journals is also in synced topic files."""
        return not any(topic.stream.log.unsynced.journal for topic in self._topics.values())

    def _concerns(self, topic: Topic) -> bool:
        return not topic.is_closed and 0 < topic.stream.log.unsynced.journal <= self._limit

    def _sync_next(self, now: Instant) -> None:
        while self._waiting and self._under_way < AT_A_TIME:
            topic = self._waiting.pop()
            if not self._concerns(topic):
                continue
            commit = topic.stream.log.sync_task()
            # A commit is in flight: one topic has one commit at a time.
            if commit is None:
                self._again.append(topic)
                continue
            self._under_way += 1
            topic.submit(commit, partial(self._synced, topic, commit))
        if self._under_way or self._waiting:
            return
        if self._again:
            self.due_ns = now.mono_ns + RETRY_NS
            return
        cleaning = FunctionTask(partial(self._journal.clean, self._limit))
        self._limit = 0
        # Others may have ended meanwhile.
        self._turn.tasks.append(TopicTask(cleaning, lambda now: self.begin(self.ended, now)))

    def _synced(self, topic: Topic, commit: Commit, now: Instant) -> None:
        """Handle the end of a topic's sync, successful or not."""
        topic.take_commit(commit, [], now)
        self._under_way -= 1
        # Still concerned: the sync has failed. Its journal stays until another one succeeds.
        if self._concerns(topic):
            self._again.append(topic)
        self._sync_next(now)
