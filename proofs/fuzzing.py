"""Runs targets on mutated valid inputs, and watches exceptions, time and memory.

1. A target catches its documented errors. Any exception that it raises is a finding.
2. An execution that takes more than a second of processor time is a hang. A timer of the operating
   system detects and interrupts it.
3. Memory is measured per target, compared with that after the first tenth of its executions: the
   growth at the end, and the peak in between.
4. An input is a byte string. Its first two bytes, which `serve` reads, select how it is fed to the
   target: in which state, and split into which chunks. So the bytes alone reproduce an execution.
"""

from __future__ import annotations

import gc
import random
import re
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

HEAD_SIZE: Final = 2
INPUT_BYTES_MAX: Final = 80_000
KEPT_MAX: Final = 400
"""Maximum number of inputs with a new outcome that are kept, to be varied further."""

_NUMBERS: Final = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 25, 26, 27, 127, 128, 255, 256, 1023, 1024, 4095, 4096, 16_383),
    *(16_384, 16_385, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20, (1 << 31) - 1),
)
NUMBERS: Final = (*_NUMBERS, *(-number for number in _NUMBERS if number), -(1 << 31))
PACKED: Final = tuple(
    struct.pack(form, number)
    for number in NUMBERS
    for form in (">i", "<i", ">q", "<q")
    if form in (">q", "<q") or -(1 << 31) <= number < 1 << 31
)
TEXTS: Final = (
    *(b"0", b"-1", b"18446744073709551616", b"9" * 70, b"1e999", b"NaN", b"true", b"null"),
    *(b"\\u0000", b"\\ud800", b"\n", b"\r\n", b" ", b"  ", b"\x00", b"\xff\xfe", b"{", b"["),
    *(b"\xf0\x9f\x98\x80", b"..", b"%2e%2e", b"/", b"\x1b[31m", b"$(id)", b"'\"<"),
    *(b"a" * 64, b"a" * 65, b"t#ephemeral", b"#ephemeral"),
)


def serve(data: bytes) -> tuple[int, list[bytes]]:
    """(variant, chunks) of an input: one chunk, single bytes, two chunks, or equal chunks."""
    if len(data) < HEAD_SIZE:
        return 0, [data]
    variant, cut, rest = data[0], data[1], data[HEAD_SIZE:]
    if cut < 128 or len(rest) < 2:
        return variant, [rest]
    if cut < 134 and len(rest) < 400:
        return variant, [rest[at : at + 1] for at in range(len(rest))]
    if cut < 224:
        at = 1 + (cut * 2654435761 >> 7) % (len(rest) - 1)
        return variant, [rest[:at], rest[at:]]
    step = max(1, len(rest) >> 3, cut - 223)
    return variant, [rest[at : at + step] for at in range(0, len(rest), step)]


class Mutator:
    """Makes inputs from a corpus.

    Args:
        seed: seed of its random generator.
        corpus: valid inputs, without the two head bytes.
        words: byte strings with a meaning for the target.
    """

    def __init__(self, seed: str, corpus: Sequence[bytes], words: Sequence[bytes]) -> None:
        self._chance = random.Random(seed)
        self._corpus = [bytes(HEAD_SIZE) + one for one in corpus]
        self._own_count = len(self._corpus)
        self._words = (*words, *TEXTS)
        self._seen: set[object] = set()

    def next(self) -> bytes:
        """An input: often slightly wrong, sometimes very wrong, rarely valid."""
        bits = self._chance.getrandbits
        corpus = self._corpus
        data = bytearray(corpus[bits(30) % len(corpus)])
        data[:HEAD_SIZE] = bits(16).to_bytes(2, "big")
        rounds = bits(8)
        for _ in range(0 if rounds < 6 else 1 + (rounds & 3)):
            _OPERATIONS[bits(10) % len(_OPERATIONS)](self, data)
        return bytes(data[:INPUT_BYTES_MAX])

    def learn(self, data: bytes, outcome: object) -> None:
        """Keep an input with an outcome that was not seen before, to vary it further."""
        if outcome in self._seen:
            return
        self._seen.add(outcome)
        if len(self._corpus) < self._own_count + KEPT_MAX and len(data) < INPUT_BYTES_MAX // 8:
            self._corpus.append(data)

    # Each method makes one change

    def _place(self, data: bytearray) -> int:
        return HEAD_SIZE + self._chance.getrandbits(30) % max(1, len(data) - HEAD_SIZE)

    def _flip(self, data: bytearray) -> None:
        at = self._place(data)
        if at < len(data):
            data[at] ^= 1 << self._chance.getrandbits(3)

    def _byte(self, data: bytearray) -> None:
        at = self._place(data)
        if at < len(data):
            data[at] = self._chance.getrandbits(8)

    def _number(self, data: bytearray) -> None:
        at = self._place(data)
        number = PACKED[self._chance.getrandbits(20) % len(PACKED)]
        data[at : at + len(number)] = number

    def _insert(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._words[self._chance.getrandbits(20) % len(self._words)]

    def _replace(self, data: bytearray) -> None:
        at = self._place(data)
        word = self._words[self._chance.getrandbits(20) % len(self._words)]
        data[at : at + len(word)] = word

    def _cut(self, data: bytearray) -> None:
        at = self._place(data)
        del data[at : at + 1 + self._chance.getrandbits(self._chance.getrandbits(3) + 1)]

    def _end(self, data: bytearray) -> None:
        del data[self._place(data) :]

    def _repeat(self, data: bytearray) -> None:
        at = self._place(data)
        size = 1 + self._chance.getrandbits(6)
        data[at:at] = data[at : at + size] * (1 + self._chance.getrandbits(3))

    def _splice(self, data: bytearray) -> None:
        other = self._corpus[self._chance.getrandbits(30) % len(self._corpus)]
        at = self._place(data)
        data[at:] = other[HEAD_SIZE + self._chance.getrandbits(30) % len(other) :]

    def _append(self, data: bytearray) -> None:
        other = self._corpus[self._chance.getrandbits(30) % len(self._corpus)]
        data += other[HEAD_SIZE:]


_OPERATIONS: Final[tuple[Callable[[Mutator, bytearray], None], ...]] = (
    Mutator._flip,
    Mutator._byte,
    Mutator._number,
    Mutator._number,
    Mutator._insert,
    Mutator._replace,
    Mutator._replace,
    Mutator._cut,
    Mutator._end,
    Mutator._repeat,
    Mutator._splice,
    Mutator._append,
)


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
        exceptions, hangs: each with its input.
        kept_bytes, peak_bytes: memory beyond that after its first tenth, at the end and at most.
    """

    name: str
    executions: int = 0
    exceptions: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    kept_bytes: int = 0
    peak_bytes: int = 0


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
    with Watch() as watch:
        _round(target, mutator, watch, found, count // 10 if findings_max > 1 else 0)
        gc.collect()
        forget_peak()
        base, _ = memory()
        while watch.executions < count and _findings(found) < findings_max:
            _round(target, mutator, watch, found, count)
    gc.collect()
    now, peak = memory()
    found.executions = watch.executions
    found.kept_bytes, found.peak_bytes = max(0, now - base), max(0, peak - base)
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
