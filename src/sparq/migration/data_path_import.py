"""Take over a data path from Go's nsqd, in an order that is safe if the process is killed.

::

    go-import.tmp/      logs under construction; can be deleted
    go-import/          all logs, synced; import.json lists the files they were made from
    go-nsqd-<time>/     those files, unchanged, and import.json

1. Until `go-import.tmp` is renamed nothing else has changed: the next start begins again.
2. After the rename the import is complete: the next start only moves files not yet in place.
3. A data path with both sparq's topics and Go's files is refused: only the operator knows which
   of them are valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from sparq.broker.catalog import TOPICS, Catalog
from sparq.log.disk import Disk, DiskError, ensure_directory, read_bytes
from sparq.migration.queues import COMMITTED, TEMPORARY, GoData, GoDataError, go_files, survey
from sparq.migration.topic_import import MIB, Clock, ImportStopped, Tally, Target, import_topic
from sparq.protocol.names import directory_name

PLAN = "import.json"
ASIDE = "go-nsqd-"
FORMAT = 1

logger = logging.getLogger(__name__)


class GoImportError(Exception):
    """The data path cannot be taken over; the text says why and what to do."""


class MovePlan(Struct):
    """Which of Go's files go where, once the new logs are complete."""

    format: int
    aside: str
    originals: list[str]


class DataPathImport:
    """The import of a data path that Go's nsqd has left."""

    def __init__(
        self, disk: Disk, data_path: str, *, node_id: int, max_bytes_per_file: int, clock: Clock
    ) -> None:
        """`node_id` is used if the data path has no node id yet."""
        self._disk = disk
        self._data_path = data_path
        self._catalog = Catalog(disk, data_path, node_id)
        self._max_bytes_per_file = max_bytes_per_file
        self._clock = clock

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Import the data of Go's nsqd, if there is any; otherwise do nothing.

        Args:
            is_stopping: whether nsqd has to stop; called after each batch, in this thread.

        Raises:
            GoImportError: the import is not possible; no data is lost.
            ImportStopped: `is_stopping` returned True.
            DiskError: the data path cannot be read or written.
            CatalogError: sparq's own files in the data path cannot be opened.
        """
        disk = self._disk
        if disk.exists(self._path(COMMITTED)):
            logger.info("finishing an import of Go's data that was interrupted in its last step")
            self._move_into_place()
        if disk.exists(self._path(TEMPORARY)):
            logger.info("an import of Go's data was interrupted; starting it again")
            self._discard()
        names = go_files(disk, self._data_path)
        if not names:
            return
        self._catalog.load()
        if self._catalog.topic_names():
            raise GoImportError(
                f"{self._data_path} contains both topics of sparq and files of Go's nsqd"
                f" ({names[0]}{', ...' if len(names) > 1 else ''}): move the files that you do not"
                f" want to use to another folder (sparq's: {TOPICS}/ and sparq.json)"
            )
        self._import(is_stopping)
        self._move_into_place()

    def _path(self, *names: str) -> str:
        return "/".join((self._data_path, *names))

    # Before the rename

    def _import(self, is_stopping: Callable[[], bool]) -> None:
        try:
            data = survey(self._disk, self._data_path)
        except GoDataError as error:
            raise GoImportError(str(error)) from error
        needed = sum(queue.size_bytes for queue in data.queues())
        free = self._disk.free_bytes(self._data_path)
        if free < needed:  # fail at once
            raise GoImportError(_too_full(self._data_path, needed, free))
        for note in data.notes:
            logger.warning("%s", note)
        text = "importing the data of Go's nsqd: %d topics, %.1f MiB of messages"
        logger.info(text, len(data.topics), needed / MIB)
        tally = Tally(needed, self._clock, is_stopping)
        try:
            self._build(data, tally)
        except ImportStopped:
            self._discard()
            raise
        except DiskError as error:
            self._give_up(error, needed)
        text = "imported %s messages; skipped damage in %d place%s of Go's files"
        logger.info(text, f"{tally.messages:,}", tally.damaged, "" if tally.damaged == 1 else "s")

    def _give_up(self, error: DiskError, needed: int) -> None:
        """Delete the unfinished import, and raise an error that says what to do."""
        free = 0
        try:
            self._discard()
            free = self._disk.free_bytes(self._data_path)
        except DiskError as second:
            logger.warning("could not delete the unfinished import: %s", second)
        if error.is_full:
            raise GoImportError(_too_full(self._data_path, needed, free)) from error
        raise GoImportError(
            f"importing the data of Go's nsqd failed: {error}; its files are unchanged"
        ) from error

    def _build(self, data: GoData, tally: Tally) -> None:
        """Build and sync everything in the temporary folder, then rename it, which commits it."""
        disk = self._disk
        ensure_directory(disk, self._path(TEMPORARY))
        ensure_directory(disk, self._path(TEMPORARY, TOPICS))
        for topic in data.topics.values():
            target = Target(
                disk,
                self._path(TEMPORARY, TOPICS, directory_name(topic.name)),
                node_id=self._catalog.node_id,
                floor_index=self._catalog.retired_index,
                max_bytes_per_file=self._max_bytes_per_file,
                clock=self._clock,
            )
            try:
                import_topic(disk, self._data_path, topic, target, tally)
            except (DiskError, ImportStopped):
                target.close()
                raise
            target.close()
        # From the inside out: the logs are synced, then the folders that hold them, then the plan.
        # After the rename all of it must survive a power cut.
        disk.sync_directory(self._path(TEMPORARY, TOPICS))
        self._write_plan(data.names)
        disk.sync_directory(self._path(TEMPORARY))
        # The one step that commits: before it Go's files count, after it the new logs.
        disk.rename(self._path(TEMPORARY), self._path(COMMITTED))
        disk.sync_directory(self._data_path)

    def _write_plan(self, names: list[str]) -> None:
        """Write where the files go and which they are; the folder's name is not in use."""
        seconds = self._clock().wall_ns // 1_000_000_000
        aside = ASIDE + datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
        while self._disk.exists(self._path(aside)):
            aside += "_"
        plan = msgspec.json.encode(MovePlan(FORMAT, aside, names))
        file = self._disk.create(self._path(TEMPORARY, PLAN))
        try:
            file.append([msgspec.json.format(plan, indent=1) + b"\n"], 0)
            file.sync()
        finally:
            file.close()

    def _discard(self) -> None:
        """Delete the temporary folder, from the inside out."""
        disk = self._disk
        topics = self._path(TEMPORARY, TOPICS)
        listed = disk.listdir(topics) if disk.exists(topics) else []
        folders = [f"{topics}/{name}" for name in listed]
        for folder in (*folders, topics, self._path(TEMPORARY)):
            if disk.exists(folder):
                for name in disk.listdir(folder):
                    disk.unlink(f"{folder}/{name}")
                disk.remove_directory(folder)

    # After the rename

    def _move_into_place(self) -> None:
        """Move Go's files aside and the logs into place; steps already done are skipped."""
        disk = self._disk
        plan = self._path(COMMITTED, PLAN)
        if disk.exists(plan):
            found = self._read_plan(plan)
            folder = self._path(found.aside)
            disk.make_directory(folder)
            moves = [(self._path(name), f"{folder}/{name}") for name in found.originals]
            self._move(moves, folder)
            topics = self._path(COMMITTED, TOPICS)
            home = self._path(TOPICS)
            disk.make_directory(home)
            moves = [(f"{topics}/{name}", f"{home}/{name}") for name in disk.listdir(topics)]
            self._move(moves, home)
            disk.sync_directory(topics)
            # Last: as long as the plan is here, the next start repeats these steps.
            self._move([(plan, f"{folder}/{PLAN}")], folder)
            logger.info("the files of Go's nsqd are kept in %s", folder)
        if disk.exists(self._path(COMMITTED, TOPICS)):
            disk.remove_directory(self._path(COMMITTED, TOPICS))
        disk.remove_directory(self._path(COMMITTED))
        disk.sync_directory(self._data_path)

    def _move(self, moves: Iterable[tuple[str, str]], home: str) -> None:
        """Durably rename the files that are not renamed yet."""
        for old, new in moves:
            # A run that was killed has moved it already.
            if self._disk.exists(old):
                self._disk.rename(old, new)
        # Both folders: a rename changes an entry in each.
        self._disk.sync_directory(home)
        self._disk.sync_directory(self._data_path)

    def _read_plan(self, path: str) -> MovePlan:
        file = self._disk.open(path)
        try:
            text = read_bytes(file, file.size(), 0)
        finally:
            file.close()
        try:
            return msgspec.json.decode(text, type=MovePlan)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise GoImportError(
                f"{path} is damaged: {error}; if there is no folder {ASIDE}..., move"
                f" {self._path(COMMITTED)} away and start again to repeat the import"
            ) from error


def _too_full(data_path: str, needed: int, free: int) -> str:
    # A message takes 8 bytes more than in Go's files; ledgers and headers take little.
    about = needed * 5 // 4 // MIB + 1
    return (
        f"no space in {data_path} to import the data of Go's nsqd: about {about} MiB are needed in"
        f" addition to its files, {free // MIB} MiB are free; its files are unchanged. Free some"
        " space, or run Go's nsqd until its queues are shorter"
    )
