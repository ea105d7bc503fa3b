"""Ways in which a data path rots while nobody looks: what is changed, and where.

A damage is made on a copy of the files, given as path -> bytes. It says which bytes of which file
are not what they were, so that a proof knows what may be missing afterwards, and nothing else.
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
    """What was done.

    Attributes:
        kind: one word or two.
        path: the file.
        start, end: the bytes of it that may differ now, or be gone.
        files: all files, this one damaged.
        all_of_it: nothing of the file counts any more, for its header is gone.
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
    """The files with another content of this one."""
    return {**files, path: data}


def flip(files: Files, path: str, offset: int, bit: int) -> Damage:
    """One bit."""
    data = bytearray(files[path])
    data[offset] ^= 1 << bit
    return Damage("flip", path, offset, offset + 1, changed(files, path, bytes(data)))


def flip_anywhere(files: Files, chance: random.Random) -> Damage:
    """One bit of all there are: large files are hit as much more often as they are larger."""
    paths = sorted(files)
    (path,) = chance.choices(paths, [len(files[path]) for path in paths])
    return flip(files, path, chance.randrange(len(files[path])), chance.randrange(8))


def flip_small(files: Files, chance: random.Random) -> Damage:
    """One bit of a file that is no segment: these are small, and chance would pass them by."""
    small = [path for path, data in sorted(files.items()) if data and not path.endswith(".log")]
    path = chance.choice(small)
    return flip(files, path, chance.randrange(len(files[path])), chance.randrange(8))


def truncate(files: Files, chance: random.Random) -> Damage:
    """A segment loses its end, sometimes nearly all of it; it is not cut between two batches.

    There the newest file would be whole, and who looks at it could not know that it had more.
    """
    path = any_segment(files, chance)
    size = len(files[path])
    kept = chance.randrange(DATA_START + 1, size)
    kept -= any(stored.offset == kept for stored in layout.batches(path, files[path]))
    return Damage("truncation", path, kept, size, changed(files, path, files[path][:kept]))


def truncate_head(files: Files, chance: random.Random) -> Damage:
    """A segment that is not the newest is cut in its head: nothing of it is left."""
    path = chance.choice(segments(files)[:-1])
    kept = chance.choice((0, 1, 100, 128, 4096, DATA_START))
    data = files[path][:kept]
    return Damage("truncation", path, 0, len(files[path]), changed(files, path, data), True)


def zero_block(files: Files, chance: random.Random) -> Damage:
    """A sector or page reads as zeros."""
    return block(files, chance, "zeroed block", bytes)


def noise_block(files: Files, chance: random.Random) -> Damage:
    """A sector or page reads as anything."""
    return block(files, chance, "block of noise", chance.randbytes)


def misplaced_block(files: Files, chance: random.Random) -> Damage:
    """A sector or page has what belongs elsewhere: a write that went to the wrong place."""
    source = files[any_segment(files, chance)]

    def elsewhere(size: int) -> bytes:
        at = chance.randrange(len(source) // size) * size
        return source[at : at + size]

    return block(files, chance, "misplaced block", elsewhere)


def block(
    files: Files, chance: random.Random, kind: str, filling: Callable[[int], bytes]
) -> Damage:
    """One block of a segment, aligned as a disk has it, has another content."""
    path = any_segment(files, chance)
    data, size = files[path], chance.choice(BLOCKS)
    at = chance.randrange((len(data) + size - 1) // size) * size
    end = min(at + size, len(data))
    replaced = data[:at] + filling(size)[: end - at] + data[end:]
    return Damage(kind, path, at, end, changed(files, path, replaced))


def swap(files: Files, chance: random.Random) -> Damage:
    """Two segments have each other's names. A file is what its header says: nothing is lost."""
    one, two = chance.sample(segments(files), 2)
    return Damage("swap", one, 0, 0, {**files, one: files[two], two: files[one]})


def stray(files: Files, foreign: bytes, chance: random.Random) -> Damage:
    """A segment of another log has come into the folder: nothing of it may be delivered."""
    folder = any_segment(files, chance).rpartition("/")[0]
    path = f"{folder}/{chance.randrange(1, 1 << 50):016x}.log"
    return Damage("stray file", path, 0, 0, changed(files, path, foreign))


def replaced(files: Files, foreign: bytes, chance: random.Random) -> Damage:
    """A segment has the content of another log's."""
    path = chance.choice(segments(files)[:-1])
    size = len(files[path])
    return Damage("replaced file", path, 0, size, changed(files, path, foreign), True)


def copied(files: Files, chance: random.Random) -> Damage:
    """A segment is there a second time under another name: no message comes twice."""
    path = any_segment(files, chance)
    folder = path.rpartition("/")[0]
    double = f"{folder}/{chance.randrange(1, 1 << 50):016x}.log"
    return Damage("copied file", double, 0, 0, changed(files, double, files[path]))


def wrong_index(files: Files, chance: random.Random) -> Damage:
    """A segment has the index file of another, or what its own once was."""
    source = chance.choice([path for path in sorted(files) if path.endswith(".index")])
    path = any_segment(files, chance).removesuffix(".log") + ".index"
    data = files[source]
    kept = data if path != source else data[: chance.randrange(len(data))]
    return Damage("wrong index file", path, 0, 0, changed(files, path, kept))


def segments(files: Files) -> list[str]:
    """The segments, oldest first."""
    return sorted(path for path in files if path.endswith(".log"))


def any_segment(files: Files, chance: random.Random) -> str:
    """One of them."""
    return chance.choice(segments(files))
