"""The brokers of the bench: sparq, Go's nsqd, and brokers that Debian packages.

One module per broker. `CONTESTANTS` lists the brokers with their settings, in the order of the
table. Brokers that are not installed are printed as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.beanstalkd import Beanstalkd
from bench.peers.nats import Nats
from bench.peers.nsq import MEMORY_MESSAGES, GoNsqd, Sparq
from bench.peers.peer import Peer
from bench.peers.redis import Redis

SPEED, BACKLOG = "speed", "backlog"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A broker with its settings.

    Attributes:
        key: its name on the command line.
        label: its name in the table.
        kind: the broker.
        flags: its settings.
        parts: the parts of the bench, "speed" or "backlog", in which it takes part.
        environment: further environment variables.
    """

    key: str
    label: str
    kind: type[Peer]
    flags: Sequence[str] = ()
    parts: Sequence[str] = (SPEED,)
    environment: Mapping[str, str] = field(default_factory=dict)

    def make(self, folder: Path) -> Peer:
        """Return the broker; its data go to a new folder."""
        peer = self.kind(folder, self.flags)
        peer.program.environment = {**(peer.program.environment or {}), **self.environment}
        return peer


BOTH = (SPEED, BACKLOG)
DISK = "--mem-queue-size=0"
EVERY_SECOND = ("--appendfsync", "everysec")
CONTESTANTS = (
    Contestant("sparq", "sparq, sync before OK", Sparq, parts=BOTH),
    Contestant("sparq-later", "sparq, NSQ's sync policy", Sparq, ("--sync-every=2500",)),
    Contestant("go", "Go's nsqd, in memory", GoNsqd, (f"--mem-queue-size={MEMORY_MESSAGES}",)),
    Contestant("go-disk", "Go's nsqd, on disk", GoNsqd, (DISK,)),
    Contestant("go-synced", "Go's nsqd, on disk, synced", GoNsqd, (DISK, "--sync-every=1")),
    Contestant("go-default", "Go's nsqd, defaults", GoNsqd, parts=(BACKLOG,)),
    Contestant("redis", "Redis Streams, always", Redis, ("--appendfsync", "always")),
    Contestant("redis-later", "Redis Streams, everysec", Redis, EVERY_SECOND, BOTH),
    Contestant("nats", "NATS JetStream, file", Nats, parts=BOTH),
    Contestant("beanstalkd", "beanstalkd, sync each", Beanstalkd, ("-f0",)),
    Contestant("beanstalkd-later", "beanstalkd, 50 ms", Beanstalkd, parts=BOTH),
)


def present(part: str, keys: Sequence[str] = ()) -> list[Contestant]:
    """The contestants of a part that can run here, or of them those with these keys.

    Those that are not installed are printed, with the reason.
    """
    found = []
    for contestant in CONTESTANTS:
        if part in contestant.parts and (not keys or contestant.key in keys):
            if reason := contestant.kind.missing():
                print(f"absent: {contestant.label} ({reason})")
            else:
                found.append(contestant)
    return found
