"""All topics of a data path: opened at the start, created at first use, deleted.

1. At most one topic has a given name. While the files of a deleted topic are being removed,
   creating a topic of that name is refused as `exiting`; this takes milliseconds. A failed removal
   is retried.
2. Deleting waits for the topic's commit in flight: its files must not be renamed while in use.
3. A topic that cannot be opened is reported, in the log and as bad health, and left untouched:
   nothing is guessed, and its name is refused. The next start tries again, not this process: what a
   disk that is failing shows of a log must not be taken for its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from errno import EOVERFLOW
from functools import partial
from typing import Final

from sparq.broker import policies
from sparq.broker.catalog import Catalog, Removal, SaveTask
from sparq.broker.draining import Drains
from sparq.broker.full_disk import DiskProbe
from sparq.broker.health import ErrorNote, Trouble
from sparq.broker.ledger_writer import LedgerWriter
from sparq.broker.options import (
    BrokerOptions,
    QueueSettings,
    Refusal,
    check_limit,
    file_bytes,
)
from sparq.broker.policies import Policies, Policy
from sparq.broker.topic import Topic
from sparq.broker.turn import Ticket, TopicTask, Turn
from sparq.log import journal as journals
from sparq.log.block import BlockCache
from sparq.log.disk import DiskError, FileSystem
from sparq.log.journal import FILE_BYTES, Journal
from sparq.log.ledger import Ledger
from sparq.log.log import CLOCK_TEXT, Log, LogOptions, MemoryLog
from sparq.log.records import TopicState
from sparq.log.reserve import FinReserve, Reserve
from sparq.log.task import FunctionTask, Task, TaskKind
from sparq.protocol.instant import CLOCK_END_NS, Instant
from sparq.protocol.names import is_ephemeral

FILE_BYTES_MIN: Final = 256 << 10
"""Minimum size of a journal file, used on a small disk."""

Files = tuple[Ledger, TopicState, Log]


class Leaving(Refusal):
    """The topic of this name is being deleted, or could not be opened."""

    code = "EXITING"
    fatal = True


class Opening(Task):
    """A task: reads the files of one topic."""

    kind = TaskKind.READ

    def __init__(self, name: str, open_files: Callable[[], Files]) -> None:
        self.name = name
        self.found: Files | None = None
        self._open_files = open_files

    def execute(self) -> None:
        """Read the files."""
        self.found = self._open_files()

    def sync(self) -> None:
        """Sync this topic's files alone, after syncing all topics at once has failed."""
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


class Topics:
    """The topics by name.

    Attributes:
        by_name: the existing topics.
        unopened: names of topics that could not be opened, each with the reason.
        has_lookupd: whether a new topic waits for nsqlookupd's answer.
        journal: the journal in which waiting commits share a sync.
        policies: the policies in force.
        drains: the drains, which may refuse publishes to an existing topic, too.
    """

    def __init__(self, catalog: Catalog, turn: Turn[Topic], options: BrokerOptions) -> None:
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
        self._probe: DiskProbe | None = None
        self._leaving: dict[str, Topic] = {}
        self._refusals: dict[str, str] = {}
        """Why topics that are being deleted still exist."""
        self._again: list[tuple[str, Removal]] = []

    def load(self, now: Instant, run_all: RunAll | None = None) -> list[str]:
        """Open everything in the data path; returns notes for the operator.

        Args:
            now: the current time.
            run_all: runs tasks, in its own threads, and returns when all have run; None: run them
                one after another.

        Raises:
            DiskError: the data path cannot be used.
            CatalogError: this version cannot open the data path.
        """
        catalog, report = self._catalog, []
        self._check_clock(now)
        catalog.load()
        # Guessing would be unsafe: without the policies a topic might lose what they keep.
        chosen = catalog.read_file(
            policies.FILE, policies.decode, "the policies that were set at run time"
        )
        self.policies = replace(self.policies, chosen=chosen or ())
        self.drains.load()
        reserve = self._reserve = catalog.reserve = Reserve.open(catalog.disk, catalog.data_path)
        limits = self._options.limits
        enough_bytes = max(limits.max_body_size, limits.max_msg_size)
        self._probe = DiskProbe(reserve, enough_bytes, catalog.probe)
        put_back = journals.recover(catalog.disk, catalog.data_path, self.journal)
        report += put_back.report
        names = catalog.topic_names()
        file_system = None
        # 3,000 topics took 12,000 syncs; with one sync a start takes 0.6 s less.
        if len(names) >= self._options.topics_synced_together:
            # Opened before the topics: its sync covers only what is written from here on.
            file_system = catalog.topics_file_system()
        # They may run in other threads: each keeps its result, and only this thread adds topics.
        openings = [Opening(name, partial(self._open, name, now, file_system)) for name in names]
        for opening in openings:
            # Not opened if its part of a journal could not be written back: it would lack messages.
            folder = catalog.folder(opening.name).removeprefix(f"{catalog.data_path}/")
            opening.error = put_back.refused.get(folder)
        readable = [opening for opening in openings if opening.error is None]
        if run_all is not None:
            run_all(readable)
        else:
            for opening in readable:
                opening.run()
        if file_system is not None:
            report += _sync_together(file_system, openings)
        for opening in openings:
            report += self._opened(opening, now)
        for folder in catalog.trashed():
            removal = Removal(catalog, folder, in_trash=True)
            # What cannot be removed stays in the trash until the next start.
            self._turn.tasks.append(TopicTask(removal, lambda _now: None))
        # There are at most two journals: on a small disk, both together take about as much as the
        # reserve.
        self.journal.file_bytes = min(FILE_BYTES, max(FILE_BYTES_MIN, reserve.target_bytes // 2))
        return report

    def _opened(self, opening: Opening, now: Instant) -> list[str]:
        """Add a topic whose files were read; returns notes for the operator."""
        name = opening.name
        if opening.found is None:
            error = opening.error
            assert error is not None
            self.unopened[name] = f"topic {name} cannot be opened: {error.reason}"
            note = f"topic {name} cannot be opened and is left alone: {error}"
            self._turn.health.fail(Trouble.OPENING, name, note, error)
            return []
        ledger, state, log = opening.found
        opening.found = None
        topic = self._make_topic(name, log, ledger)
        topic.recover(state, now)
        self.by_name[name] = topic
        self._turn.topics[topic] = None
        # What a crash leaves at the end of a ledger is no error; lost records and messages are.
        kind = ErrorNote if ledger.lacks_records else str
        report = [kind(f"topic {name}: {text}") for text in ledger.damage]
        report += [
            ErrorNote(
                f"topic {name}: {d.messages} messages lost in {d.path} at {d.offset}: {d.reason}"
            )
            for d in log.damage
        ]
        if log.torn_bytes:
            report.append(f"topic {name}: cut off {log.torn_bytes} bytes of an unfinished write")
        return report

    def _open(self, name: str, now: Instant, file_system: FileSystem | None = None) -> Files:
        """Open a topic's files; may run in any thread, in parallel with other topics.

        Args:
            name: the topic's name.
            now: the current time.
            file_system: will be synced afterwards, including what this finds; None: sync here.
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
        """Return the topic of this name; a new one waits for nsqlookupd's channels, if configured.

        Raises:
            Leaving: a topic of this name is being deleted, or could not be opened.
            LimitReached: the topic does not exist, and the maximum number of topics is reached.
            Refusal: its files cannot be created.
        """
        if (found := self.by_name.get(name)) is not None:
            return found
        if reason := self.leaving_reason(name):
            raise Leaving(reason)
        if name in self.unopened:
            raise Leaving(self.unopened[name])
        check_limit(len(self.by_name), self._options.max_topics, "topics")
        ledger: Ledger | None = None
        log: Log
        if is_ephemeral(name):
            log = MemoryLog(node_id=self._catalog.node_id, now=now)
        else:
            try:
                if self._reserve is not None:
                    self._reserve.refuse_if_blocked()
                ledger, _, log = self._open(name, now)
            except DiskError as error:
                note = f"topic {name} cannot be created: {error}"
                self._turn.health.fail(Trouble.CREATE, "", note, error)
                self._catalog.forget_folder(name)
                raise Refusal(error.reason) from error
            self._turn.health.recover(Trouble.CREATE)
        topic = self._make_topic(name, log, ledger)
        topic.begin(now, wait_for_lookup=self.has_lookupd)
        self.by_name[name] = topic
        self._turn.topics[topic] = None
        self._turn.changes.append(("created", name, None))
        return topic

    def _make_topic(self, name: str, log: Log, ledger: Ledger | None) -> Topic:
        scope = self.policies.scope(name)
        return Topic(name, log, ledger, options=self._options, scope=scope, turn=self._turn)

    def choose_policies(self, chosen: Iterable[Policy], ticket: Ticket) -> None:
        """Write the run-time policies, then put them into force; the ticket is answered once."""
        wanted = tuple(chosen)
        text = policies.encode(wanted)
        save = SaveTask(partial(self._catalog.save_file, policies.FILE, text), "policies")

        def saved(_now: Instant) -> None:
            if save.error is None:
                # The configuration file's policies may have changed meanwhile.
                self.put_into_force(replace(self.policies, chosen=wanted))
            save.report(self._turn, ticket)

        self._turn.tasks.append(TopicTask(save, saved))

    def put_into_force(self, changed: Policies) -> None:
        """Apply other policies."""
        self.policies = changed
        for name, topic in self.by_name.items():
            topic.take_scope(changed.scope(name))
            if not topic.ephemeral:
                topic.stream.log.limit_files(self._file_bytes(topic.settings))

    def _file_bytes(self, settings: QueueSettings) -> int:
        return file_bytes(self._options.max_bytes_per_file, settings.max_topic_bytes)

    def writers(self) -> list[LedgerWriter]:
        """The ledgers of existing topics, and of deleted ones whose files are not removed yet."""
        topics = (*self.by_name.values(), *self._leaving.values())
        return [topic.writer for topic in topics if topic.writer is not None]

    def delete(self, name: str, now: Instant) -> None:
        """Delete a topic, its channels and files, and close its clients' connections."""
        topic, turn = self.by_name.pop(name), self._turn
        for channel in tuple(topic.channels):
            topic.delete_channel(channel)
        topic.is_deleted = True
        turn.health.forget(name)
        topic.refuse_publishes(now)
        turn.changes.append(("deleted", name, None))
        if topic.ephemeral:
            turn.topics.pop(topic, None)
        else:
            # The files must not be renamed while a thread uses them: see `remove_if_idle`.
            self._leaving[name] = topic
            turn.topics[topic] = None
        turn.due_topics.take([name])

    def remove_if_idle(self, topic: Topic) -> None:
        """Remove a deleted topic's files, once no task uses them."""
        if self._leaving.get(topic.name) is not topic or topic.is_closed or topic.under_way:
            return
        catalog = self._catalog
        # A new topic of this name must not repeat an id that a consumer still knows.
        catalog.retired_index = max(catalog.retired_index, topic.stream.log.end_index)
        topic.close()
        self._turn.topics.pop(topic, None)
        self._remove_files(topic.name, Removal(catalog, catalog.folder(topic.name)))

    @property
    def is_short(self) -> bool:
        """Whether the disk has no space for more messages."""
        return self._reserve is not None and self._reserve.is_short

    @property
    def has_work(self) -> bool:
        """Whether a failed operation must be retried."""
        return bool(self._again or self._turn.health.troubles)

    def fin_reserve(self) -> FinReserve | None:
        """How much space there is for FINs; None before `load`."""
        return None if self._reserve is None else self._reserve.fin_reserve()

    def leaving_reason(self, name: str) -> str | None:
        """Why the name of a deleted topic cannot be used yet; None: no topic of it is leaving."""
        return self._refusals.get(name, "exiting") if name in self._leaving else None

    def maintain(self, now: Instant) -> None:
        """Retry what failed: removals, and on a failing disk a write."""
        self._check_clock(now)
        again, self._again = self._again, []
        for name, removal in again:
            self._remove_files(name, removal)
        turn, probe = self._turn, self._probe
        if probe is not None and probe.begins(turn.health):
            probed = partial(probe.apply_result, self.writers, turn.health)
            turn.tasks.append(TopicTask(probe, probed))
        if self.is_short and self.journal.number > self.journal.cleaned:
            # A full disk needs the space of the journals.
            end = FunctionTask(self.journal.end, TaskKind.COMMIT)
            turn.tasks.append(TopicTask(end, self._journal_ended))

    def _check_clock(self, now: Instant) -> None:
        health = self._turn.health
        if now.wall_ns >= CLOCK_END_NS:
            error = DiskError("write", self._catalog.data_path, EOVERFLOW, text=CLOCK_TEXT)
            health.fail(Trouble.CLOCK, "", f"publishes are refused: {CLOCK_TEXT}", error)
        else:
            health.recover(Trouble.CLOCK)

    def _journal_ended(self, _now: Instant) -> None:
        self._turn.journals_ended = max(self._turn.journals_ended, self.journal.ended)

    def forget_if_unused(self, topic: Topic, now: Instant) -> None:
        """Delete an ephemeral topic that has lost its last channel."""
        if topic.ephemeral and not topic.channels and topic.had_channel:
            self.delete(topic.name, now)

    def _remove_files(self, name: str, removal: Removal) -> None:
        self._turn.tasks.append(TopicTask(removal, partial(self._removed, name, removal)))

    def _removed(self, name: str, removal: Removal, _now: Instant) -> None:
        """Handle the result of a removal: free the name, or schedule a retry."""
        if removal.is_deleted:
            self._leaving.pop(name, None)
            self._refusals.pop(name, None)
        if removal.error is None:
            self._turn.health.recover(Trouble.REMOVAL, name)
            return
        note = f"deleting {name} failed: {removal.error}"
        self._turn.health.fail(Trouble.REMOVAL, name, note, removal.error)
        # Tried again even if the name is free: files in the trash take space until a start.
        self._again.append((name, removal))
        if not removal.is_deleted:
            refusal = f"its files could not be removed yet: {removal.error.reason}"
            self._refusals[name] = refusal


def _sync_together(file_system: FileSystem, openings: Sequence[Opening]) -> list[str]:
    """Sync the file system of all opened topics; if that fails, sync each topic alone.

    Returns:
        Notes for the operator.
    """
    try:
        file_system.sync()
    except DiskError as error:
        for opening in openings:
            opening.sync()
        return [f"syncing all topics at once failed, so they were synced one by one: {error}"]
    finally:
        file_system.close()
    return []
