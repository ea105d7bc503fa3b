"""The daemons of the museum: sparq's nsqd, one of its controls, or Go's nsqd, all handled alike.

What an exhibit may ask a daemon for is what both have: flags, protocol, /stats, and a data path.
What differs is said here: how a record's length is damaged on disk, and how one sees that what a
broker notes from time to time (Go's metadata files) has been noted.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.servers import NsqdServer, start_first
from tests.support.v2_client import OK, Message, V2Client, fin_each

from proofs.daemon_fixture import NSQD, ROOT, wait_until
from proofs.layout import batches
from sparq.protocol.commands import rdy, sub

QUIET_SECONDS = 5.0
"""After so long without a message nothing more will come, whatever the depth says."""
NOTED_SECONDS = 20.0


class Specimen(NsqdServer):
    """A daemon with a data path.

    Attributes:
        data: its data path, as this process sees it.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        flags: tuple[str, ...],
        prefix: tuple[str, ...] = (),
        data: Path | None = None,
    ) -> None:
        super().__init__(module, folder, flags, prefix)
        self.data = data or folder / "data"

    def depth(self, topic: str, channel: str) -> int:
        """What waits in the channel."""
        return int(self.channel(topic, channel).get("depth", 0))

    def has_noted(self, topic: str, channel: str, depth: int) -> bool:
        """Whether what it notes from time to time is on disk: here there is no such thing."""
        return True

    def damage_length(self, number: int) -> None:
        """Flip a high bit of the length of the message with this number, on the disk."""
        (path,) = self.data.glob("topics/*/*.log")
        data = bytearray(path.read_bytes())
        data[list(batches(str(path), bytes(data)))[number].frames_at] ^= 0x40
        path.write_bytes(data)


class GoSpecimen(Specimen):
    """Go's nsqd; `module` is the path of its program."""

    def program(self) -> tuple[str, ...]:
        """What is started, without its flags."""
        return (*self.prefix, self.module)

    def has_noted(self, topic: str, channel: str, depth: int) -> bool:
        """Whether the metadata of the channel's queue say so."""
        try:
            text = (self.data / f"{topic}:{channel}.diskqueue.meta.dat").read_text()
        except FileNotFoundError:
            return False
        return text.partition("\n")[0] == str(depth)

    def damage_length(self, number: int) -> None:
        """Flip a high bit of the length of the message with this number, on the disk."""
        path = next(path for path in self.data.glob("*:*.diskqueue.0*.dat"))
        data = bytearray(path.read_bytes())
        at = 0
        for _ in range(number):
            at += 4 + int(struct.unpack_from(">i", data, at)[0])
        data[at] ^= 0x40
        path.write_bytes(data)


Maker = Callable[..., Specimen]
"""(folder, *flags, prefix=, data=) -> a started daemon."""


def maker(program: str = NSQD) -> Maker:
    """Makes daemons of sparq's module of this name, or of Go's program at this path."""
    kind = GoSpecimen if "/" in program else Specimen

    def make(
        folder: Path, *flags: str, prefix: tuple[str, ...] = (), data: Path | None = None
    ) -> Specimen:
        os.environ["PYTHONPATH"] = str(ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        place = data or folder / "data"
        if data is None:
            place.mkdir(mode=0o700, exist_ok=True)
        given = (f"--data-path={place}", "--broadcast-address=127.0.0.1", *flags)
        made = kind(program, folder, given, prefix, data)
        start_first(made)
        return made

    return make


def wait_noted(server: Specimen, topic: str, channel: str, depth: int) -> None:
    """Give the broker the time that it asks for: what it notes now and then is noted."""
    wait_until(lambda: server.has_noted(topic, channel, depth), "noted", NOTED_SECONDS)


def wait_depth(server: Specimen, topic: str, channel: str, depth: int) -> None:
    """Wait until so many messages have come to the channel."""
    wait_until(lambda: server.depth(topic, channel) == depth, f"{depth} messages in the channel")


def collect(server: Specimen, topic: str, channel: str) -> list[Message]:
    """What the channel still delivers, each message finished, until it has no more to give."""
    found: list[Message] = []
    with V2Client(server) as line:
        assert line.ask(sub(topic, channel)) == OK
        line.send(rdy(500))
        last = time.monotonic()
        while time.monotonic() - last < QUIET_SECONDS:
            if came := line.messages_within(0.1):
                line.send(fin_each(came))
                found += came
                last = time.monotonic()
            elif not is_waiting(server, topic, channel):
                break
    return found


def is_waiting(server: Specimen, topic: str, channel: str) -> bool:
    """Whether the channel says that it has anything."""
    figures = server.channel(topic, channel)
    waiting = ("depth", "in_flight_count", "deferred_count")
    return any(figures.get(key) for key in waiting)
