"""The daemons of `make museum`: sparq's nsqd, its controls, and Go's nsqd, with one interface.

A loss scenario uses only what all of them have: flags, protocol, /stats, and a data path. This
module handles the differences: how to damage a record's length on disk, and how to see that the
periodically written state (Go's metadata files) has been written.
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
"""After this time without a message no more will come, whatever the depth says."""
WRITTEN_SECONDS = 20.0


class ScenarioDaemon(NsqdServer):
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
        """Return the channel's depth."""
        return int(self.channel(topic, channel).get("depth", 0))

    def has_written_state(self, topic: str, channel: str, depth: int) -> bool:
        """Return whether the periodically written state is on disk: sparq has none."""
        return True

    def damage_length(self, number: int) -> None:
        """Flip a high bit of the length of message `number`, on the disk."""
        (path,) = self.data.glob("topics/*/*.log")
        data = bytearray(path.read_bytes())
        data[list(batches(str(path), bytes(data)))[number].frames_at] ^= 0x40
        path.write_bytes(data)


class GoScenarioDaemon(ScenarioDaemon):
    """Go's nsqd; `module` is the path of its program."""

    def program(self) -> tuple[str, ...]:
        """Return the command without its flags."""
        return (*self.prefix, self.module)

    def has_written_state(self, topic: str, channel: str, depth: int) -> bool:
        """Return whether the metadata file of the channel's queue shows this depth."""
        try:
            text = (self.data / f"{topic}:{channel}.diskqueue.meta.dat").read_text()
        except FileNotFoundError:
            return False
        return text.partition("\n")[0] == str(depth)

    def damage_length(self, number: int) -> None:
        """Flip a high bit of the length of message `number`, on the disk."""
        path = next(path for path in self.data.glob("*:*.diskqueue.0*.dat"))
        data = bytearray(path.read_bytes())
        at = 0
        for _ in range(number):
            at += 4 + int(struct.unpack_from(">i", data, at)[0])
        data[at] ^= 0x40
        path.write_bytes(data)


Maker = Callable[..., ScenarioDaemon]
"""(folder, *flags, prefix=, data=) -> a started daemon."""


def maker(program: str = NSQD) -> Maker:
    """Return a function that starts daemons of this sparq module, or of this Go program."""
    kind = GoScenarioDaemon if "/" in program else ScenarioDaemon

    def make(
        folder: Path, *flags: str, prefix: tuple[str, ...] = (), data: Path | None = None
    ) -> ScenarioDaemon:
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


def wait_written(server: ScenarioDaemon, topic: str, channel: str, depth: int) -> None:
    """Wait until the broker has written its periodically written state."""
    wait_until(lambda: server.has_written_state(topic, channel, depth), "written", WRITTEN_SECONDS)


def wait_depth(server: ScenarioDaemon, topic: str, channel: str, depth: int) -> None:
    """Wait until the channel has this depth."""
    wait_until(lambda: server.depth(topic, channel) == depth, f"{depth} messages in the channel")


def collect(server: ScenarioDaemon, topic: str, channel: str) -> list[Message]:
    """Return all remaining messages of the channel, each of them finished."""
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


def is_waiting(server: ScenarioDaemon, topic: str, channel: str) -> bool:
    """Return whether the channel reports any messages."""
    figures = server.channel(topic, channel)
    waiting = ("depth", "in_flight_count", "deferred_count")
    return any(figures.get(key) for key in waiting)
