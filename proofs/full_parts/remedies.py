"""An operator's remedies for a full disk, with no free byte left and the reserve gone.

Each delete and empty request is answered with 200 when the work is done: the space is free, and
publishing resumes, normally within a second; after SECONDS_MAX the proof fails. A kill -9 undoes
none of it.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import NsqdServer
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, V2Client

from proofs.daemon_fixture import started
from sparq.protocol.commands import mpub

DISK = "16m"
BODY = b"r" * 100
BATCH = 50
SECONDS_MAX = 10.0
KEPT_BYTES = 1 << 20
"""Minimum of free bytes after a topic or channel was emptied or deleted."""
ACTIONS = (
    "/channel/empty?topic=t&channel=c",
    "/topic/empty?topic=t",
    "/channel/delete?topic=t&channel=c",
    "/topic/delete?topic=t",
)


class Remedies(NamedTuple):
    """Results of all remedies.

    Attributes:
        tried: number of remedies.
        slowest_seconds: longest time from a request to the next acknowledged message.
        wrong: descriptions of violations.
    """

    tried: int
    slowest_seconds: float
    wrong: list[str]


def remedies(folder: Path) -> Remedies:
    """Try each remedy on its own disk."""
    wrong: list[str] = []
    slowest = 0.0
    for number, action in enumerate(ACTIONS):
        place = folder / str(number)
        with SmallDisk(place / "nsqd", DISK) as disk, started(place, prefix=disk.prefix) as server:
            seconds, faults = one(server, disk, action)
        slowest = max(slowest, seconds)
        wrong += [f"{action}: {fault}" for fault in faults]
    return Remedies(len(ACTIONS), slowest, wrong)


def one(server: NsqdServer, disk: SmallDisk, action: str) -> tuple[float, list[str]]:
    """Return the seconds until a message is acknowledged, and descriptions of violations."""
    wrong: list[str] = []
    server.post("/topic/create?topic=t")
    if "channel" in action:
        server.post("/channel/create?topic=t&channel=c")
    with V2Client(server) as line:
        for count in (BATCH, 1):
            while line.ask(mpub("t", [BODY] * count)) == OK:
                pass
        use_up(disk)
        if line.ask(mpub("t", [BODY])) == OK:
            wrong.append("the disk is not full")
        began = time.monotonic()
        status, text = server.request("POST", action)
        if status != 200:
            wrong.append(f"answered {status} {text!r}")
        if free_bytes(disk) < KEPT_BYTES:
            wrong.append(f"only {free_bytes(disk):,} bytes are free after it")
        deadline = began + SECONDS_MAX
        while line.ask(mpub("t", [BODY])) != OK:
            if time.monotonic() > deadline:
                wrong.append("nothing is taken after it")
                break
        seconds = time.monotonic() - began
    server.restart()
    figures = server.get_json("/stats?format=json&topic=t")["topics"][0]
    depths = [figures["depth"], *(channel["depth"] for channel in figures["channels"])]
    if max(depths) > 1:
        wrong.append(f"after a kill it has {max(depths):,} messages")
    if action.startswith("/channel/delete") and figures["channels"]:
        wrong.append("after a kill the channel is there again")
    return seconds, wrong


def use_up(disk: SmallDisk) -> None:
    """Fill the disk from outside, including the space of the reserve."""
    os.truncate(disk.seen / "reserve", 0)
    disk.ballast(free_bytes(disk))


def free_bytes(disk: SmallDisk) -> int:
    """Return the number of free bytes on the disk."""
    facts = os.statvfs(disk.seen)
    return facts.f_bavail * facts.f_frsize
