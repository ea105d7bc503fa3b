"""Damages to the files of a data path: flipped bits, truncations, wrong blocks, misplaced files.

A damage is made on a copy of the files, given as path -> bytes. It records which bytes of which
file it changed, so that a proof knows which messages may be missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from proofs import layout
from proofs.layout import DATA_START

Files = dict[str, bytes]
BLOCKS = (512, 4096)


class Damage(NamedTuple):
    """One damage.

    Attributes:
        kind: its name, one to three words.
        path: the damaged file.
        start, end: range of its bytes that may have changed or be gone.
        files: all files, including the damaged one.
        all_of_it: whether all messages of the file may be lost, as its header is gone or foreign.
    """

    kind: str
    path: str
    start: int
    end: int
    files: Files
    all_of_it: bool = False

    def __str__(self) -> str:
        name = self.path.rpartition("/topics/")[2]
        return f"{self.kind} of bytes {self.start} to {self.end} of {name}"


def changed(files: Files, path: str, data: bytes) -> Files:
    """Return the files with new content for one of them."""
    return {**files, path: data}


def flip(files: Files, path: str, offset: int, bit: int) -> Damage:
    """Flip this bit."""
    data = bytearray(files[path])
    data[offset] ^= 1 << bit
    return Damage("flip", path, offset, offset + 1, changed(files, path, bytes(data)))


def flip_anywhere(files: Files, chance: random.Random) -> Damage:
    """Flip a random bit; the probability of a file is proportional to its size."""
    paths = sorted(files)
    (path,) = chance.choices(paths, [len(files[path]) for path in paths])
    return flip(files, path, chance.randrange(len(files[path])), chance.randrange(8))


def flip_small(files: Files, chance: random.Random) -> Damage:
    """Flip a random bit of a file other than a segment; by size alone, few bits would hit these."""
    small = [path for path, data in sorted(files.items()) if data and not path.endswith(".log")]
    path = chance.choice(small)
    return flip(files, path, chance.randrange(len(files[path])), chance.randrange(8))


def truncate(files: Files, chance: random.Random) -> Damage:
    """Cut off the end of a segment, sometimes nearly all of it, but never between two batches.

    After a cut between two batches, the newest segment would look complete.
    """
    path = any_segment(files, chance)
    size = len(files[path])
    kept = chance.randrange(DATA_START + 1, size)
    kept -= any(stored.offset == kept for stored in layout.batches(path, files[path]))
    return Damage("truncation", path, kept, size, changed(files, path, files[path][:kept]))


def truncate_head(files: Files, chance: random.Random) -> Damage:
    """Cut a segment other than the newest in its header, so that all its messages are lost."""
    path = chance.choice(segments(files)[:-1])
    kept = chance.choice((0, 1, 100, 128, 4096, DATA_START))
    data = files[path][:kept]
    return Damage("truncation", path, 0, len(files[path]), changed(files, path, data), True)


def zero_block(files: Files, chance: random.Random) -> Damage:
    """Fill a sector or page with zeros."""
    return block(files, chance, "zeroed block", bytes)


def noise_block(files: Files, chance: random.Random) -> Damage:
    """Fill a sector or page with random bytes."""
    return block(files, chance, "block of noise", chance.randbytes)


def misplaced_block(files: Files, chance: random.Random) -> Damage:
    """Fill a sector or page with the content of another one, like a misdirected write."""
    source = files[any_segment(files, chance)]

    def elsewhere(size: int) -> bytes:
        at = chance.randrange(len(source) // size) * size
        return source[at : at + size]

    return block(files, chance, "misplaced block", elsewhere)


def block(
    files: Files, chance: random.Random, kind: str, filling: Callable[[int], bytes]
) -> Damage:
    """Replace the content of one aligned block of a segment, of 512 or 4096 bytes."""
    path = any_segment(files, chance)
    data, size = files[path], chance.choice(BLOCKS)
    at = chance.randrange((len(data) + size - 1) // size) * size
    end = min(at + size, len(data))
    replaced = data[:at] + filling(size)[: end - at] + data[end:]
    return Damage(kind, path, at, end, changed(files, path, replaced))


def swap(files: Files, chance: random.Random) -> Damage:
    """Swap the names of two segments. Their headers identify them, so no message is lost."""
    one, two = chance.sample(segments(files), 2)
    return Damage("swap", one, 0, 0, {**files, one: files[two], two: files[one]})


def stray(files: Files, foreign: bytes, chance: random.Random) -> Damage:
    """Add a segment of another log to the folder: none of its messages may be delivered."""
    folder = any_segment(files, chance).rpartition("/")[0]
    path = f"{folder}/{chance.randrange(1, 1 << 50):016x}.log"
    return Damage("stray file", path, 0, 0, changed(files, path, foreign))


def replaced(files: Files, foreign: bytes, chance: random.Random) -> Damage:
    """Replace a segment's content with a segment of another log."""
    path = chance.choice(segments(files)[:-1])
    size = len(files[path])
    return Damage("replaced file", path, 0, size, changed(files, path, foreign), True)


def copied(files: Files, chance: random.Random) -> Damage:
    """Add a copy of a segment under another name: no message may be delivered twice."""
    path = any_segment(files, chance)
    folder = path.rpartition("/")[0]
    double = f"{folder}/{chance.randrange(1, 1 << 50):016x}.log"
    return Damage("copied file", double, 0, 0, changed(files, double, files[path]))


def wrong_index(files: Files, chance: random.Random) -> Damage:
    """Give a segment the index file of another segment, or an earlier, shorter one of its own."""
    source = chance.choice([path for path in sorted(files) if path.endswith(".index")])
    path = any_segment(files, chance).removesuffix(".log") + ".index"
    data = files[source]
    kept = data if path != source else data[: chance.randrange(len(data))]
    return Damage("wrong index file", path, 0, 0, changed(files, path, kept))


def segments(files: Files) -> list[str]:
    """Return the paths of the segments, oldest first."""
    return sorted(path for path in files if path.endswith(".log"))


def any_segment(files: Files, chance: random.Random) -> str:
    """Return the path of a random segment."""
    return chance.choice(segments(files))
