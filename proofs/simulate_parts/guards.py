"""The guards of sparq that a control of the simulation switches off, one at a time.

Each replaces one function, while its context lasts, with the behaviour of a broker without that
guard, and names the count that the simulation must then find to be above zero.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sparq.broker import delivery, full_disk
from sparq.broker import topic as topics
from sparq.broker.broker import Broker
from sparq.broker.catalog import Catalog
from sparq.broker.channel import Channel
from sparq.broker.dead_letters import apply_result
from sparq.broker.draining import Drains
from sparq.broker.health import Trouble
from sparq.broker.in_flight import InFlight, Rows, Table
from sparq.broker.publishing import Publish, Publishing, answer
from sparq.broker.session import Slot
from sparq.broker.trimming import Trimming
from sparq.broker.turn import Turn
from sparq.log import journal, recovery
from sparq.log import log as logs
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.records import RecordKind
from sparq.log.segment import SegmentInfo
from sparq.options.units import SECOND
from sparq.protocol import batch
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant
from sparq.testing import START_WALL_NS

EARLY_NS = 900_000_000


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard that can be switched off.

    Attributes:
        name: what is missing without the guard.
        finds: the count of a tally that must then be above zero.
        target, function: what is replaced.
        replacement: its replacement.
        on_full_disk: whether only runs with a full disk can detect it.
    """

    name: str
    finds: str
    target: object
    function: str
    replacement: Any
    on_full_disk: bool = False

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Switch the guard off inside the block."""
        with patch.object(self.target, self.function, self.replacement):
            yield


def no_sync(_commit: Commit, _target: object) -> bool:
    """Report a sync as done without doing it."""
    return True


def not_put_back(*_arguments: object) -> journal.WriteBack:
    """Leave the journal's messages in the journal."""
    return journal.WriteBack()


def finish_not_recorded(
    ledger: Ledger, kind: RecordKind, *columns: Any, flag: bool = False
) -> None:
    """Record everything but what was finished."""
    if kind is not RecordKind.FINISHED:
        NOTE(ledger, kind, *columns, flag=flag)


def recovered_without_ceiling(*arguments: Any, **options: Any) -> Any:
    """Recover without the indexes that an earlier run may have used."""
    found = RECOVER(*arguments, **options)
    found.ceiling = 0
    return found


def any_payload(_buffer: object, _at: int, _header: object) -> bool:
    """Accept a payload without checking its checksum."""
    return True


def due_at_once(*arguments: Any, **options: Any) -> Any:
    """Make every deferred publish due at once after a start."""
    found = RECOVER(*arguments, **options)
    found.dues = [(index, 0) for index, _ in found.dues]
    return found


def split_mpub(publishing: Publishing, publish: Publish, ready_ns: int) -> None:
    """Commit an MPUB as two."""
    bodies, half = publish.bodies, len(publish.bodies) // 2
    if not half:
        ADD(publishing, publish, ready_ns)
        return
    first, second = (
        BodySlices(bodies.buffer, bodies.starts[part], bodies.sizes[part])
        for part in (slice(half), slice(half, None))
    )
    size, rest = first.size_bytes, second.size_bytes
    unasked = None if publish.slot is None else Slot()
    first_half = publish._replace(bodies=first, messages=half, size_bytes=size, slot=unasked)
    ADD(publishing, first_half, ready_ns)
    count = publish.messages - half
    second_half = publish._replace(bodies=second, messages=count, size_bytes=rest)
    ADD(publishing, second_half, ready_ns)


def in_wrong_order(publishing: Publishing, publish: Publish, ready_ns: int) -> None:
    """Take the publishes that wait for a commit from the wrong end."""
    ADD(publishing, publish, ready_ns)
    publishing.waiting.rotate(1)


def timed_out_early(in_flight: InFlight, now_ns: int) -> Rows:
    """Time out messages before their time."""
    return EXPIRE(in_flight, now_ns + EARLY_NS)


def by_the_wall(broker: Broker, now: Instant) -> int | None:
    """Handle what is due by the wall clock, which may be set to any time."""
    return TICK(broker, Instant(now.wall_ns, now.wall_ns - START_WALL_NS + SECOND))


def kept(in_flight: InFlight, table: Table, count: int) -> None:
    """Keep a page although none of its messages is in flight any more."""
    in_flight.count -= count
    table.count -= count


def one_attempt(runs: Any, attempts: Any) -> bytearray:
    """Do not count attempts."""
    return COPY_RUNS(runs, attempts * 0 + 1)


def none_too_old(_handout: delivery.DeliveryContext) -> int:
    """Treat no message as too old."""
    return 0


def accepted_while_draining(_drains: Drains, _topic: str, _messages: int) -> None:
    """Accept publishes on an nsqd that drains."""


def not_written(_catalog: Catalog, _name: str, _text: bytes | None) -> None:
    """Answer a drain, but keep it in memory only."""


def deferred_dropped_too(_channel: Channel, _first: int, _end: int) -> list[int]:
    """Drop deferred messages together with unread ones."""
    return []


def no_dead_letters(_handout: delivery.DeliveryContext, runs: list[delivery.DeliveryRun]) -> Any:
    """Treat no message as a dead letter."""
    return runs


def finished_before_stored(broker: Broker, now: Instant) -> None:
    """Finish a dead letter before it is stored in its topic."""
    for letters in broker.turn.letters:
        apply_result(letters, now, is_kept=True)
    MOVE(broker, now)


def no_room(*_arguments: object) -> bool:
    """Leave a ledger unwritten if there is no space for it."""
    return False


def files_kept(*_arguments: object, ends_file: bool) -> list[SegmentInfo]:
    """Keep files that are no longer needed."""
    return []


def stored_and_refused(
    publishes: list[Publish],
    turn: Turn[Any],
    now: Instant,
    reason: str | None = None,
    *,
    fatal: bool = False,
) -> None:
    """Refuse publishes that were stored; not dead letters, which would be sent again forever."""
    if publishes and not any(publish.is_letter for publish in publishes):
        error = DiskError("sync", "", errno.EIO)
        turn.health.fail(Trouble.PUBLISH, publishes[0].topic, "a publish is refused", error)
        reason = reason or error.reason
    ANSWER(publishes, turn, now, reason, fatal=fatal)


MOVE = Broker._move_letters
TICK = Broker.tick
NOTE = Ledger.note
RECOVER: Callable[..., Any] = recovery.recover
ADD = Publishing.add
ANSWER = answer
EXPIRE = InFlight.expire
COPY_RUNS = delivery.copy_runs

GUARDS = (
    Guard("syncs", "lost", Commit, "_sync", no_sync),
    Guard("the journal", "lost", journal, "recover", not_put_back),
    Guard("notes of FINs", "returned", Ledger, "note", finish_not_recorded),
    Guard("ceilings", "reused", logs, "recover", recovered_without_ceiling),
    Guard("checksums", "corrupt", batch, "check_payload", any_payload),
    Guard("due times", "early", logs, "recover", due_at_once),
    Guard("whole MPUBs", "split", Publishing, "add", split_mpub),
    Guard("order", "disordered", Publishing, "add", in_wrong_order),
    Guard("timeouts", "hasty", InFlight, "expire", timed_out_early),
    Guard("the monotonic clock", "hasty", Broker, "tick", by_the_wall),
    Guard("attempts", "recounted", delivery, "copy_runs", one_attempt),
    Guard("freeing", "left", InFlight, "_shrink", kept),
    Guard("ages", "aged", delivery.DeliveryContext, "oldest_ns", none_too_old),
    Guard("deferred beside a lag limit", "lost", Channel, "_apart_between", deferred_dropped_too),
    Guard("most attempts", "overdue", delivery, "_without_dead", no_dead_letters),
    Guard("letters before FINs", "lost", Broker, "_move_letters", finished_before_stored),
    Guard("refusals of drains", "undrained", Drains, "check", accepted_while_draining),
    Guard("drains on the disk", "undrained", Catalog, "save_file", not_written),
    Guard("room for ledgers", "returned", full_disk, "make_room", no_room, on_full_disk=True),
    Guard("deleting", "stuck", Trimming, "finished", files_kept, on_full_disk=True),
    Guard("true answers", "refused", topics, "answer", stored_and_refused),
)
