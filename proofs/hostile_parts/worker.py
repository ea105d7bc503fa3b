"""Runs a target on many inputs, and watches exceptions, time and memory.

1. A target catches its documented errors. Any exception that it raises is a finding.
2. An execution that takes more than a second of processor time is a hang. A timer of the operating
   system detects and interrupts it.
3. Memory is measured per target, compared with that after the first tenth of its executions: the
   growth at the end, and the peak in between.
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
"""A target stops after this number of findings: more of them show nothing new."""

_PROCESS: Final = Path("/proc/self")
_FIGURE: Final = re.compile(r"(VmRSS|VmHWM):\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Target:
    """Code that gets hostile bytes.

    Attributes:
        name: its name in the report.
        share: its number of executions out of a thousand.
        corpus: valid inputs.
        run: takes an input and returns its outcome (anything hashable). An exception from it is a
            finding.
        words: byte strings with a meaning for it.
    """

    name: str
    share: int
    corpus: Sequence[bytes]
    run: Callable[[bytes], object]
    words: Sequence[bytes] = ()


@dataclass(slots=True)
class Found:
    """Findings and figures of one target.

    Attributes:
        executions: number of executions.
        outcomes: number of different outcomes.
        exceptions, hangs: each with its input.
        kept_bytes, peak_bytes: memory beyond that after its first tenth, at the end and at most.
        seconds: processor time.
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
    """An execution took too long. A BaseException, so that no `except Exception` catches it."""


class Watch:
    """Interrupts an execution that is still running after two ticks of a processor-time timer."""

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
    """(current memory, peak since `forget_peak`) in bytes."""
    figures = dict(_FIGURE.findall((_PROCESS / "status").read_text()))
    return int(figures["VmRSS"]) << 10, int(figures["VmHWM"]) << 10


def forget_peak() -> None:
    """Reset the peak of memory."""
    (_PROCESS / "clear_refs").write_text("5")


def work(target: Target, count: int, seed: str, findings_max: int = FINDINGS_MAX) -> Found:
    """Run a target on `count` inputs, or until it has `findings_max` findings."""
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
    """Run until `until` executions in total, or until the next finding."""
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
    """A finding on one line: target, error, place in the code, and input as a Python literal."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    shown = repr(data) if len(data) <= 400 else f"{data[:400]!r}... ({len(data)} bytes)"
    return f"{name}: {error!r}{place} for {shown}"
