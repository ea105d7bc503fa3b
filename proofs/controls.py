"""nsqd with one safeguard switched off: `python -m proofs.controls NAME`, then nsqd's flags.

A proof must fail with it. Each control replaces functions of sparq; the proof that uses it says
what it then finds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

Patches = tuple[tuple[Any, str, Any], ...]
"""What is replaced: the module or class, the name in it, and the replacement."""

LATE_COMMIT_SECONDS, LATE_FINISH_SECONDS, LATE_TIMER_NS = 0.05, 0.5, 1_000_000_000
LEAKED_BYTES, LEAKED_FILES = 2 << 20, 16


def late_commit() -> Patches:
    """Send every OK before its write: a disk thread reports a commit before it runs it."""
    from sparq.log.task import TaskKind
    from sparq.nsqd import turns

    class LateWorker(turns.Worker):
        def _work(self) -> None:
            while (entry := self._queue.get()) is not None:
                number, topic_task = entry
                if topic_task.task.kind is TaskKind.COMMIT:
                    self._report(number, topic_task)
                    time.sleep(LATE_COMMIT_SECONDS)
                    topic_task.task.run()
                else:
                    topic_task.task.run()
                    self._report(number, topic_task)

    # In the event loop, a commit would be done before its OK.
    never = (turns.DiskThreads, "may_run_inline", lambda *_: False)
    return (turns, "Worker", LateWorker), never


def late_finish() -> Patches:
    """Hold records of FINs back for a moment, so that a kill loses answered ones."""
    from sparq.log.ledger import Ledger
    from sparq.log.records import RecordKind

    note, flush = Ledger.note, Ledger.flush
    held_since: dict[Ledger, float] = {}

    def note_held(ledger: Ledger, kind: RecordKind, *columns: Any, flag: bool = False) -> None:
        if kind is RecordKind.FINISHED:
            held_since.setdefault(ledger, time.monotonic())
        note(ledger, kind, *columns, flag=flag)

    def flush_late(ledger: Ledger) -> None:
        since = held_since.get(ledger)
        if since is None or time.monotonic() - since > LATE_FINISH_SECONDS:
            held_since.pop(ledger, None)
            flush(ledger)

    return (Ledger, "note", note_held), (Ledger, "flush", flush_late)


def ignored_sync_error() -> Patches:
    """Take a failed sync for a successful one: Linux may have dropped the data."""
    from sparq.log.disk import DiskError, RealFile

    sync = RealFile.sync

    def sync_or_not(file: RealFile) -> None:
        try:
            sync(file)
        except DiskError:
            return

    return ((RealFile, "sync", sync_or_not),)


def no_sync() -> Patches:
    """Sync nothing and leave all writes to the kernel."""
    from sparq.log.disk import RealDisk, RealFile

    return (RealFile, "sync", lambda _: None), (RealDisk, "sync_directory", lambda *_: None)


def no_reserve() -> Patches:
    """Reserve no disk space: on a full disk, FINs cannot be recorded."""
    from sparq.log.reserve import Reserve

    def free_bytes(reserve: Reserve) -> int:
        return reserve._disk.free_bytes(reserve._directory)

    return (
        (Reserve, "release", lambda *_: False),
        (Reserve, "restore", free_bytes),
        (Reserve, "admit", lambda *_: None),
    )


def never_paused() -> Patches:
    """Never notice that a client does not read."""
    from sparq.nsqd.tcp import TcpConnection

    return ((TcpConnection, "pause_writing", lambda _: None),)


def delivered_is_done() -> Patches:
    """Finish the messages in flight on a connection that ends: delivery at most once."""
    from sparq.broker.channel import Channel
    from sparq.log.records import RecordKind

    def forget(channel: Channel, session: Any, _now: object, *, requeue: bool) -> None:
        if channel.sessions.pop(session.owner, None) is None:
            return
        channel.ready_sessions.pop(session, None)
        had = channel.in_flight.release_owner(session.owner)
        if len(had.indexes):
            channel.ledger.note(RecordKind.FINISHED, channel.name, had.indexes, had.indexes + 1)

    return ((Channel, "unsubscribe", forget),)


def late_timers() -> Patches:
    """Handle timers a second late."""
    from sparq.broker.waiting import DueTimes

    pop_due = DueTimes.pop_due

    def pop_late(times: DueTimes[Any], mono_ns: int) -> list[Any]:
        return pop_due(times, mono_ns - LATE_TIMER_NS)

    return ((DueTimes, "pop_due", pop_late),)


def leaking() -> Patches:
    """Keep memory and open files of every topic that is deleted."""
    from sparq.broker.topics import Topics

    delete = Topics.delete
    kept: list[object] = []

    def delete_and_keep(topics: Topics, *arguments: Any) -> object:
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(LEAKED_FILES)]
        kept.append((os.urandom(LEAKED_BYTES), files))
        return delete(topics, *arguments)

    return ((Topics, "delete", delete_and_keep),)


CONTROLS: dict[str, Callable[[], Patches]] = {
    control.__name__: control
    for control in (
        *(late_commit, late_finish, ignored_sync_error, no_sync, no_reserve),
        *(never_paused, delivered_is_done, late_timers, leaking),
    )
}


def main() -> int:
    """Switch the safeguard off, and run nsqd."""
    # Before nsqd is loaded, which takes functions from the modules that are changed.
    for target, name, replacement in CONTROLS[sys.argv.pop(1)]():
        setattr(target, name, replacement)
    from sparq.nsqd.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
