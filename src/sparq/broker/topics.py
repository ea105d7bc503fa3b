"""All topics of a data path: opened at the start, created when first used, deleted.

1. A name has at most one topic. While the files of a deleted one are on their way out, what would
   create it anew is refused as `exiting`; that takes milliseconds. What fails is tried again.
2. Deleting waits for the topic's commit in flight: its files must not be renamed under it.
3. A topic that cannot be opened is reported and left alone: nothing is guessed over, and its name
   is refused, so that its data stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from sparq.broker.catalog import Catalog, PolicySave, Removal
from sparq.broker.draining import Drains
from sparq.broker.health import SpaceWatch
from sparq.broker.options import BrokerOptions, Settings, check_limit, file_bytes
from sparq.broker.policies import Policies
from sparq.broker.publishing import Ticket
from sparq.broker.topic import Topic
from sparq.broker.turn import Turn
from sparq.log import journal as journals
from sparq.log.block import BlockCache
from sparq.log.disk import DiskError, FileSystem
from sparq.log.journal import FILE_BYTES, End, Journal
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.log.memory_log import MemoryLog
from sparq.log.records import TopicState
from sparq.log.reserve import Reserve, Room
from sparq.log.task import TaskKind
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

FILE_BYTES_MIN: Final = 256 << 10
"""Of a journal, on a small disk."""

Files = tuple[Ledger, TopicState, Log]


class Leaving(Exception):
    """The topic of this name is being deleted, or could not be opened."""


class Opening:
    """Work: the files of one topic are read."""

    kind: Final = TaskKind.READ

    def __init__(self, name: str, open_files: Callable[[], Files]) -> None:
        self.name = name
        self.found: Files | None = None
        self.error: DiskError | None = None
        self._open_files = open_files

    def run(self) -> None:
        """Read them."""
        try:
            self.found = self._open_files()
        except DiskError as error:
            self.error = error

    def sync(self) -> None:
        """Sync them one by one: syncing all topics at once has failed."""
        if self.found is None:
            return
        ledger, _, log = self.found
        ledger.sync_found()
        try:
            log.sync_found()
        except DiskError as error:
            self.found, self.error = None, error
            ledger.close()
            log.close()


RunAll = Callable[[Sequence[Opening]], None]


class Removed(NamedTuple):
    """What goes on when a deleted topic's files were removed; empty name: an earlier run's."""

    topics: Topics
    name: str
    removal: Removal

    def finish(self, turn: Turn, now: Instant) -> None:
        """The name is free again, or it is tried again."""
        self.topics.removed(self)


class SpaceLooked(NamedTuple):
    """What goes on when a full disk was looked at."""

    topics: Topics
    space: SpaceWatch

    def finish(self, turn: Turn, now: Instant) -> None:
        """There is space again, or a ledger is made smaller."""
        self.space.looked(self.topics.all(), turn.health, now)


class JournalEnded(NamedTuple):
    """What goes on when nothing is added to a journal any more."""

    end: End

    def finish(self, turn: Turn, now: Instant) -> None:
        """Its topics' files are to be synced."""
        turn.journals_ended = max(turn.journals_ended, self.end.number)


class PoliciesSaved(NamedTuple):
    """What goes on when policies were written: they hold, or not one of them does."""

    topics: Topics
    policies: Policies
    save: PolicySave
    ticket: Ticket

    def finish(self, turn: Turn, now: Instant) -> None:
        """Whoever has set them is told."""
        refused: RemoteError | None = None
        if self.save.error is None:
            # Those of the file may have changed meanwhile.
            self.topics.take_policies(self.topics.policies.with_chosen(self.policies.chosen))
        else:
            turn.health.fail(f"writing policies failed: {self.save.error}", self.save.error)
            refused = RemoteError("INTERNAL_ERROR", self.save.error.reason)
        turn.published.append((self.ticket, refused))


class Topics:
    """The topics by name.

    Attributes:
        by_name: those that exist.
        unopened: names whose data could not be opened, and why.
        has_lookupd: whether a new topic waits for what nsqlookupd says of it.
        journal: what commits that wait together are synced in.
        policies: those in force.
        drains: why publishes may be refused, though there is a topic for them.
    """

    def __init__(self, catalog: Catalog, turn: Turn, options: BrokerOptions) -> None:
        self.by_name: dict[str, Topic] = {}
        self.unopened: dict[str, str] = {}
        self.has_lookupd = options.has_lookupd
        self.journal = Journal(catalog.disk, catalog.data_path)
        self.policies = Policies(options.settings)
        self.drains = Drains(catalog, turn)
        self._catalog = catalog
        self._turn = turn
        self._options = options
        self._cache = BlockCache(options.cache_bytes)
        self._reserve: Reserve | None = None
        self._space: SpaceWatch | None = None
        self._leaving: dict[str, Topic] = {}
        self._refusals: dict[str, str] = {}
        """Why topics that are leaving are still there."""
        self._again: list[Removed] = []

    def load(self, now: Instant, run_all: RunAll | None = None) -> list[str]:
        """Open everything that the data path has; returns what an operator should read.

        Args:
            now: the time.
            run_all: runs works, in threads of its own, and returns when all have run; None: one
                after the other.

        Raises:
            DiskError: the data path itself cannot be used.
            CatalogError: it is not one that this version can open.
        """
        catalog, report = self._catalog, []
        catalog.load()
        self.policies = self.policies.with_chosen(catalog.policies)
        self.drains.take(catalog.draining)
        reserve = self._reserve = catalog.reserve = Reserve.open(catalog.disk, catalog.data_path)
        enough_bytes = self._options.limits.max_body_size
        self._space = SpaceWatch(reserve, enough_bytes)
        put_back = journals.recover(catalog.disk, catalog.data_path, self.journal)
        report += put_back.report
        names = catalog.topic_names()
        file_system = None
        if len(names) >= self._options.topics_synced_together:
            # What it is to report of is written from here on.
            file_system = catalog.topics_file_system()
        openings = [Opening(name, partial(self._open, name, now, file_system)) for name in names]
        for opening in openings:
            folder = catalog.folder(opening.name).removeprefix(f"{catalog.data_path}/")
            opening.error = put_back.refused.get(folder)
        (run_all or _one_by_one)([opening for opening in openings if opening.error is None])
        if file_system is not None:
            report += _sync_together(file_system, openings)
        for opening in openings:
            report += self._opened(opening, now)
        for folder in catalog.trashed():
            # What stays in the trash is tried again at the next start.
            self._turn.submit(Removal(catalog, folder, in_trash=True), None)
        self.journal.file_bytes = min(FILE_BYTES, max(FILE_BYTES_MIN, reserve.target_bytes // 2))
        return report

    def _opened(self, opening: Opening, now: Instant) -> list[str]:
        """Take a topic in whose files were read."""
        name = opening.name
        if opening.found is None:
            self.unopened[name] = str(opening.error)
            return [f"topic {name} cannot be opened and is left alone: {opening.error}"]
        ledger, state, log = opening.found
        opening.found = None
        topic = Topic(name, log, ledger, self._options, self.policies.scope(name))
        topic.recover(state, now)
        self.by_name[name] = topic
        self._turn.touch(topic)
        report = [f"topic {name}: {text}" for text in ledger.damage]
        report += [
            f"topic {name}: {d.messages} messages lost in {d.path} at {d.offset}: {d.reason}"
            for d in log.damage
        ]
        if log.torn_bytes:
            report.append(f"topic {name}: {log.torn_bytes} bytes of an unfinished write cut off")
        return report

    def _open(self, name: str, now: Instant, file_system: FileSystem | None = None) -> Files:
        """A topic's files; may run in any thread, beside others.

        Args:
            name: the topic's.
            now: the time.
            file_system: what is synced afterwards, with what this finds; None: this syncs it.
        """
        catalog, options = self._catalog, self._options
        folder = catalog.make_folder(name)
        ledger, state = Ledger.open(catalog.disk, folder, self._reserve, file_system)
        log = Log.open(
            catalog.disk,
            folder,
            node_id=catalog.node_id,
            options=LogOptions(
                max_bytes_per_file=self._file_bytes(self.policies.scope(name).topic),
                sync_every=options.sync_every,
                sync_timeout_ns=options.sync_timeout_ns,
            ),
            now=now,
            floor_index=max(state.highest_index + 1, catalog.retired_index),
            log_id=ledger.log_id,
            cache=self._cache,
            reserve=self._reserve,
            file_system=file_system,
        )
        return ledger, state, log

    def get_or_create(self, name: str, now: Instant) -> Topic:
        """The topic of this name; a new one waits for nsqlookupd's channels, if there is one.

        Raises:
            Leaving: a topic of this name is on its way out.
            LimitReached: it would be a new one, and there may be no more.
            DiskError: its files cannot be made.
        """
        topic = self.by_name.get(name)
        return topic if topic is not None else self._create(name, now)

    def _create(self, name: str, now: Instant) -> Topic:
        if name in self._leaving:
            raise Leaving(self._refusals.get(name, "exiting"))
        if name in self.unopened:
            raise Leaving(self.unopened[name])
        check_limit(len(self.by_name), self._options.max_topics, "topics")
        ledger: Ledger | None = None
        log: Log
        if is_ephemeral(name):
            log = MemoryLog(node_id=self._catalog.node_id, now=now)
        else:
            ledger, _, log = self._open(name, now)
        topic = Topic(name, log, ledger, self._options, self.policies.scope(name))
        topic.begin(now, wait_for_lookup=self.has_lookupd)
        self.by_name[name] = topic
        self._turn.touch(topic)
        self._turn.changes.append(("created", name, None))
        return topic

    def choose_policies(self, policies: Policies, ticket: Ticket) -> None:
        """Have the chosen ones of these written, and then hold; the ticket is answered once."""
        save = PolicySave(self._catalog, policies.chosen)
        self._turn.submit(save, None, PoliciesSaved(self, policies, save, ticket))

    def take_policies(self, policies: Policies) -> None:
        """From now on have these hold."""
        self.policies = policies
        for name, topic in self.by_name.items():
            topic.take_scope(policies.scope(name))
            self._turn.touch(topic)
            if not topic.ephemeral:
                topic.stream.log.limit_files(self._file_bytes(topic.settings))

    def _file_bytes(self, settings: Settings) -> int:
        return file_bytes(self._options.max_bytes_per_file, settings.max_topic_bytes)

    def all(self) -> list[Topic]:
        """Those that exist, and those whose files are on their way out."""
        return [*self.by_name.values(), *self._leaving.values()]

    def delete(self, name: str) -> None:
        """Drop a topic, its channels, their clients' connections, and its files."""
        topic, turn = self.by_name.pop(name), self._turn
        for channel in tuple(topic.channels):
            turn.end_sessions(topic.delete_channel(channel))
        topic.is_deleted = True
        topic.refuse_publishes()
        outcome = topic.outcome
        turn.answers += outcome.answers
        turn.changes += [*outcome.changes, ("deleted", name, None)]
        outcome.answers, outcome.changes = [], []
        if topic.ephemeral:
            turn.forget(topic)
        else:
            # Its files must not be renamed under a thread that uses them: see `go_on`.
            self._leaving[name] = topic
            turn.touch(topic)

    def go_on(self, topic: Topic) -> None:
        """A deleted topic's files can go, once nothing is under way that uses them."""
        if self._leaving.get(topic.name) is topic and not topic.is_closed and not topic.under_way:
            self._remove(topic)

    @property
    def is_short(self) -> bool:
        """Whether the disk has no space for more messages."""
        return self._reserve is not None and self._reserve.is_short

    @property
    def has_work(self) -> bool:
        """Whether something that has failed is to be tried again."""
        return bool(self._again)

    def room(self) -> Room | None:
        """How much room there is for FINs; None before `load`."""
        return None if self._reserve is None else self._reserve.room()

    def unsettled(self, name: str) -> str | None:
        """Why what was decided of a topic is not all done and on disk; None: it is."""
        if name in self._leaving:
            return self._refusals.get(name, "exiting")
        topic = self.by_name.get(name)
        return None if topic is None else topic.trimming.unsettled()

    def look_after(self) -> None:
        """Try again what has failed, and see whether a disk that was full has space again."""
        again, self._again = self._again, []
        for removed in again:
            self._turn.submit(removed.removal, None, removed)
        if self._space is not None:
            self._look_for_space(self._space)
        if self.is_short and self.journal.number > self.journal.cleaned:
            self._end_journal()

    def _look_for_space(self, space: SpaceWatch) -> None:
        if space.begins(self._turn.health):
            self._turn.submit(space, None, SpaceLooked(self, space))

    def _end_journal(self) -> None:
        """Have the journals deleted: on a full disk their space is wanted."""
        end = End(self.journal)
        self._turn.submit(end, None, JournalEnded(end))

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Drop a channel; its consumers' connections end."""
        self._turn.end_sessions(topic.delete_channel(name))
        self._turn.touch(topic)

    def forget_if_unused(self, topic: Topic) -> None:
        """An ephemeral topic goes with its last channel."""
        if topic.ephemeral and not topic.channels and topic.had_channel:
            self.delete(topic.name)

    def _remove(self, topic: Topic) -> None:
        log = topic.stream.log
        catalog = self._catalog
        catalog.retired_index = max(catalog.retired_index, log.end_index)
        topic.close()
        self._turn.forget(topic)
        removal = Removal(catalog, catalog.folder(topic.name))
        self._turn.submit(removal, None, Removed(self, topic.name, removal))

    def removed(self, removed: Removed) -> None:
        """A deleted topic's files are removed, or are to be tried again."""
        name, removal = removed.name, removed.removal
        if removal.is_deleted:
            self._leaving.pop(name, None)
            self._refusals.pop(name, None)
        if removal.error is None:
            return
        self._turn.health.fail(f"deleting {name} failed: {removal.error}", removal.error)
        self._again.append(removed)
        if not removal.is_deleted:
            refusal = f"its files could not be removed yet: {removal.error.reason}"
            self._refusals[name] = refusal


def _one_by_one(openings: Sequence[Opening]) -> None:
    for opening in openings:
        opening.run()


def _sync_together(file_system: FileSystem, openings: Sequence[Opening]) -> list[str]:
    """Have what all topics have found on the disk; where that fails, find out whose is not.

    Returns:
        What an operator should read.
    """
    try:
        file_system.sync()
    except DiskError as error:
        for opening in openings:
            opening.sync()
        return [f"the topics were synced one by one, since all at once failed: {error}"]
    finally:
        file_system.close()
    return []
