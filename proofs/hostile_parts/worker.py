"""Executes a target on many inputs and watches: exceptions, time, memory.

1. A target knows its documented errors and takes them itself; whatever leaves it is a finding.
2. An execution of more than a second of processor time is a hang. It is found while it lasts, by a
   timer of the operating system, and broken off.
3. Memory is looked at a target at a time, behind its first tenth: what it has kept at its end,
   and the most that it had in between.
"""

from __future__ import annotations

import gc
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from proofs.hostile_parts.mutate import Mutator

HANG_SECONDS: Final = 1.0
FINDINGS_MAX: Final = 5
"""Behind so many findings a target is left: more of the same say nothing."""

_PROCESS: Final = Path("/proc/self")
_FIGURE: Final = re.compile(r"(VmRSS|VmHWM):\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Target:
    """What hostile bytes are given to.

    Attributes:
        name: for the report.
        share: of a thousand executions, how many are its own.
        corpus: friendly inputs.
        run: takes an input and returns what it came to (anything hashable); raises only what it
            should never raise.
        words: pieces that mean something to it.
    """

    name: str
    share: int
    corpus: Sequence[bytes]
    run: Callable[[bytes], object]
    words: Sequence[bytes] = ()


@dataclass(slots=True)
class Found:
    """What came of one target.

    Attributes:
        executions: how many.
        outcomes: how many different ones.
        exceptions, hangs: each with its input.
        kept_bytes, peak_bytes: memory beyond that at its first tenth.
        seconds: of processor time.
    """

    name: str
    executions: int = 0
    outcomes: int = 0
    exceptions: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    kept_bytes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0


class Hang(BaseException):
    """An execution took too long. No `except Exception` stops it."""


class Watch:
    """Finds an execution that lasts over two ticks of the processor's clock."""

    def __init__(self) -> None:
        self.executions = 0
        self._before = -1
        self.hung = False

    def __enter__(self) -> Watch:
        self._old = signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS, HANG_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._old)

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        stuck, self._before = self._before == self.executions, self.executions
        if stuck:
            self._before = -1
            self.hung = True
            raise Hang


def memory() -> tuple[int, int]:
    """(now, the most since `forget_peak`) in bytes."""
    figures = dict(_FIGURE.findall((_PROCESS / "status").read_text()))
    return int(figures["VmRSS"]) << 10, int(figures["VmHWM"]) << 10


def forget_peak() -> None:
    """From now on the peak counts anew."""
    (_PROCESS / "clear_refs").write_text("5")


def work(target: Target, count: int, seed: str, findings_max: int = FINDINGS_MAX) -> Found:
    """Execute a target on so many inputs, or until so much was found."""
    mutator = Mutator(f"{seed}:{target.name}", target.corpus, target.words)
    found = Found(target.name)
    began = time.process_time()
    with Watch() as watch:
        _round(target, mutator, watch, found, count // 10 if findings_max > 1 else 0)
        gc.collect()
        forget_peak()
        base, _ = memory()
        while watch.executions < count and _findings(found) < findings_max:
            _round(target, mutator, watch, found, count)
    gc.collect()
    now, peak = memory()
    found.executions, found.outcomes = watch.executions, mutator.outcomes
    found.kept_bytes, found.peak_bytes = max(0, now - base), max(0, peak - base)
    found.seconds = time.process_time() - began
    return found


def _findings(found: Found) -> int:
    return len(found.hangs) + len(found.exceptions)


def _round(target: Target, mutator: Mutator, watch: Watch, found: Found, until: int) -> None:
    """Execute until so many were executed in all, or something was found."""
    run, make, learn = target.run, mutator.next, mutator.learn
    before = _findings(found)
    while watch.executions < until and _findings(found) == before:
        data = b""
        watch.executions += 1
        try:
            data = make()
            learn(data, run(data))
        except Hang:
            pass
        except Exception as error:
            found.exceptions.append(describe(target.name, data, error))
        if watch.hung:
            watch.hung = False
            found.hangs.append(describe(target.name, data, None))


def describe(name: str, data: bytes, error: Exception | None) -> str:
    """A finding on one line: where, what, and the input as Python writes it."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    shown = repr(data) if len(data) <= 400 else f"{data[:400]!r}... ({len(data)} bytes)"
    return f"{name}: {error!r}{place} for {shown}"
