"""Makes hostile inputs from valid ones: seeded, fast, with the numbers and words that matter.

An input is a byte string. Its first two bytes, which `serve` reads, select how it is fed to the
target: in which state, and split into which chunks. So the bytes alone reproduce an execution.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
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

    @property
    def outcomes(self) -> int:
        """Number of different outcomes so far."""
        return len(self._seen)

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
