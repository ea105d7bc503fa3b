"""Writes a data path as Go's nsqd leaves one, from the description of its file format alone.

It uses no code of sparq, so that it checks sparq's reader independently.

A data file is a sequence of records: a big-endian int32 length, then int64 timestamp, uint16
attempts, 16 characters of id, body. A metadata file in the same folder has three lines: depth, read
position, write position. ``nsqd.dat`` is JSON. `GoQueue` writes as nsqd does: it starts a new file
before the current one would exceed its limit, and deletes files that have been read.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

TIME = 1_763_000_000_000_000_000
EPOCH_MS = 1288834974288


def guid(time_ns: int, number: int, node: int = 321) -> bytes:
    """Return an id in NSQ's format."""
    return f"{((time_ns >> 20) - EPOCH_MS) << 22 | node << 12 | number % 4096:016x}".encode()


def record(body: bytes, number: int, attempts: int = 0) -> bytes:
    """Return a stored message with its length."""
    time_ns = TIME + number * 1_000_000
    message = pack(">qH16s", time_ns, attempts, guid(time_ns, number)) + body
    return pack(">i", len(message)) + message


@dataclass
class GoQueue:
    """A disk queue that is being written."""

    folder: Path
    name: str
    max_bytes: int = 100 << 20
    count: int = 0
    depth: int = 0
    read: tuple[int, int] = (0, 0)
    write: tuple[int, int] = (0, 0)
    places: list[tuple[int, int]] = field(default_factory=list)

    def path(self, number: int) -> Path:
        return self.folder / f"{self.name}.diskqueue.{number:06d}.dat"

    @property
    def metadata(self) -> Path:
        return self.folder / f"{self.name}.diskqueue.meta.dat"

    def put(self, *bodies: bytes, attempts: int = 0) -> "GoQueue":
        """Append messages; `places` records the position of each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number, at = self.write
        parts: list[bytes] = []
        for body in bodies:
            data = record(body, self.count, attempts)
            if at and at + len(data) > self.max_bytes:
                self._append(number, parts)
                number, at, parts = number + 1, 0, []
            self.places.append((number, at))
            parts.append(data)
            at += len(data)
            self.count += 1
        self._append(number, parts)
        self.write = (number, at)
        self.depth += len(bodies)
        return self

    def _append(self, number: int, parts: list[bytes]) -> None:
        with self.path(number).open("ab") as file:
            file.write(b"".join(parts))

    def take(self, count: int) -> "GoQueue":
        """Read messages, as nsqd does when it delivers them."""
        at = self.count - self.depth + count
        self.read = self.places[at] if at < self.count else self.write
        self.depth -= count
        for number in range(self.read[0]):
            self.path(number).unlink(missing_ok=True)
        return self

    def close(self) -> "GoQueue":
        """Write the metadata; messages that are put afterwards are the tail left by a crash."""
        (r, rp), (w, wp) = self.read, self.write
        self.metadata.write_text(f"{self.depth}\n{r},{rp}\n{w},{wp}\n")
        return self

    def damage_length(self, position: int, length: int | None = None) -> None:
        """Flip a bit of a message's length, or write another length."""
        number, at = self.places[position]
        with self.path(number).open("r+b") as file:
            file.seek(at)
            old = int.from_bytes(file.read(4), "big")
            file.seek(at)
            file.write(pack(">I", old ^ (1 << 21) if length is None else length & 0xFFFFFFFF))


def write_metadata(folder: Path, topics: dict[str, dict[str, bool]], paused: str = "") -> None:
    """Write nsqd.dat: topic -> channel -> whether it is paused; `paused` names a paused topic."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [
        {
            "name": topic,
            "paused": topic == paused,
            "channels": [{"name": name, "paused": flag} for name, flag in channels.items()],
        }
        for topic, channels in topics.items()
    ]
    (folder / "nsqd.dat").write_text(json.dumps({"topics": found, "version": "1.3.0"}))
