"""Millions of hostile inputs for all code that reads untrusted bytes: `make hostile`.

Targets: the parser, a broker that executes the parsed commands, IDENTIFY, responses of authds and
nsqlookupds, the client's receiver, both compressions, MPUB bodies and query strings over HTTP,
nsqlookupd's protocol, the HTTP sites of both daemons, batches as Spark reads them, and queues of
Go's nsqd. `make bitrot` damages the files of a data path.

1. A target raises only its documented errors. No execution takes more than a second of processor
   time. No target leaks memory, or exceeds a fixed amount of memory at any time.
2. A seeded mutator changes valid inputs, and keeps each input that had a new outcome.
3. The control switches off one guard per run, and the proof must notice each: an unchecked number
   (an exception), an unchecked size (a hang), unlimited decompression (memory).
"""

from __future__ import annotations

import logging
import multiprocessing
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Final, NamedTuple

from proofs.fuzzing import Found, Target, work
from proofs.outcome import Outcome, Plan, progress, run
from sparq.protocol import compression, parser, receiver
from sparq.protocol.layout import FRAME_HEADER_SIZE

COUNT: Final = 5_200_000
PROMISES: Final = ("P12",)
PROCESSES: Final = 2
KEPT_BYTES_MAX: Final = 8 << 20
"""Allows for caches that fill up late. A leak per execution would add up to far more."""

PEAK_BYTES_MAX: Final = 12 << 20
"""Inputs have at most 80 KB and bodies 20 KB, so the processing of one needs far less."""

SLOT: Final = 450_000
"""Executions per process. Later ones run in a new process, so that memory stays comparable."""

CONTROL_FINDINGS: Final = 1


def _accept_any_number() -> None:
    """Accept a number of RDY, REQ or DPUB without a check that it has only digits."""
    setattr(parser, "_decimal", int)  # noqa: B010 - a replacement, which types do not allow


def _accept_any_size() -> None:
    """Accept negative sizes in a client's receiver, also -4, which leads to the same frame."""

    def frames(self: receiver.Receiver) -> Iterator[tuple[int, bytes]]:
        while True:
            data, at = self._data, self._at
            if len(data) - at < FRAME_HEADER_SIZE:
                return self._wait_for(FRAME_HEADER_SIZE)
            size, kind = struct.unpack_from(">ii", data, at)
            if not -4 <= size <= self._max_frame_bytes:
                raise receiver.FrameError("not a frame")
            end = at + 4 + size
            if end > len(data):
                return self._wait_for(4 + size)
            self._at = end
            yield kind, data[at + FRAME_HEADER_SIZE : end]

    setattr(receiver.Receiver, "frames", frames)  # noqa: B010 - a replacement as well


def _inflate_all() -> None:
    """Make Deflate decompress its whole input into one piece."""
    setattr(compression, "PIECE_BYTES", 1 << 40)  # noqa: B010 - a replacement as well


class Control(NamedTuple):
    """A guard: how to switch it off, and which target must notice it.

    Attributes:
        switch_off: switches it off in this process.
        target: name of the target.
        executions: number of executions within which the target must notice it.
        notices: kind of the finding: exceptions, hangs or memory.
    """

    switch_off: Callable[[], None]
    target: str
    executions: int
    notices: str


CONTROLS: Final = {
    "numbers unchecked": Control(_accept_any_number, "parser", 20_000, "exceptions"),
    "frame sizes unchecked": Control(_accept_any_size, "receiver", 40_000, "hangs"),
    "inflation unbounded": Control(_inflate_all, "compression", 4_000, "memory"),
}


def all_targets() -> list[Target]:
    """Every target. Creating them starts servers, so each process creates its own."""
    from proofs import hostile_targets

    logging.getLogger("sparq").setLevel(logging.ERROR)
    return hostile_targets.targets()


def execute(count: int, seed: str) -> list[Found]:
    """Run `count` executions, divided among all targets by their shares; in a new process."""
    targets = all_targets()
    whole = sum(target.share for target in targets)
    return [work(one, max(20, count * one.share // whole + 1), seed) for one in targets]


def execute_without(guard: str, seed: str) -> list[Found]:
    """Run the target of a control with the guard switched off; in a new process."""
    control = CONTROLS[guard]
    control.switch_off()
    (target,) = [one for one in all_targets() if one.name == control.target]
    return [work(target, control.executions, seed, CONTROL_FINDINGS)]


def pool() -> ProcessPoolExecutor:
    """A new process for each task, so that a guard that one switches off stays on in others."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(PROCESSES, mp_context=context, max_tasks_per_child=1)


def attack(plan: Plan) -> list[Found]:
    """Run all targets in several processes, `PROCESSES` at a time."""
    slots = PROCESSES * max(1, plan.count // (PROCESSES * SLOT))
    found: list[Found] = []
    with pool() as workers:
        each = plan.count // slots + 1
        futures = [workers.submit(execute, each, f"{plan.seed}:{slot}") for slot in range(slots)]
        for future in as_completed(futures):
            found += result_of(future)
            progress(f"{sum(one.executions for one in found):,} of {plan.count:,} executions")
    return found


def result_of(future: Future[list[Found]]) -> list[Found]:
    """The findings of a process. If the process died, that is a finding."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        return [Found("all", exceptions=[f"a process died: {error}"])]


def holds(found: Iterable[Found]) -> bool:
    """Whether there are no findings."""
    return not any(noticed(one) for one in found)


def noticed(one: Found) -> set[str]:
    """The kinds of findings of a target: any of exceptions, hangs, memory."""
    kinds = {"exceptions"} if one.exceptions else set()
    if one.hangs:
        kinds.add("hangs")
    if one.kept_bytes > KEPT_BYTES_MAX or one.peak_bytes > PEAK_BYTES_MAX:
        kinds.add("memory")
    return kinds


def control(plan: Plan) -> tuple[bool, str]:
    """Whether the proof notices the absence of each guard, and the text for the report."""
    with pool() as workers:
        futures = {name: workers.submit(execute_without, name, str(plan.seed)) for name in CONTROLS}
        kinds = {
            name: set[str]().union(*map(noticed, result_of(future)))
            for name, future in futures.items()
        }
    said = [f"{name}: {', '.join(sorted(found)) or 'nothing'}" for name, found in kinds.items()]
    missed = [guard.notices in kinds[name] for name, guard in CONTROLS.items()]
    return all(missed), f"noticed {' · '.join(said)}"


def figures(found: Sequence[Found]) -> str:
    """The line of the report."""
    executions = sum(one.executions for one in found)
    kept = max(one.kept_bytes for one in found) / (1 << 20)
    peak = max(one.peak_bytes for one in found) / (1 << 20)
    return (
        f"executions {executions:,} · targets "
        f"{len({one.name for one in found})}"
        f" · undocumented exceptions {sum(len(one.exceptions) for one in found)}"
        f" · hangs > 1 s {sum(len(one.hangs) for one in found)}"
        f" · RSS growth {kept:.1f} MiB, at most {peak:.1f} MiB at any time"
    )


def prove(plan: Plan) -> Outcome:
    """Attack all targets, then run the controls."""
    found = attack(plan)
    for one in found:
        for finding in (*one.exceptions, *(f"hang in {hang}" for hang in one.hangs)):
            print(f"\r{finding}", file=sys.stderr)
        if "memory" in noticed(one):
            kept, peak = one.kept_bytes >> 10, one.peak_bytes >> 10
            print(f"\r{one.name}: kept {kept} KiB, needed {peak} KiB", file=sys.stderr)
    held, said = control(plan) if plan.control else (True, "")
    return Outcome(PROMISES, figures(found), holds(found) and held, said)


if __name__ == "__main__":
    sys.exit(run("hostile", prove, count=COUNT, of="executions"))
