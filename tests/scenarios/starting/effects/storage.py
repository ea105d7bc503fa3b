"""Flags with an effect on disk, memory, the log output or statistics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sparq.protocol.commands import mpub, pub, rdy, sub
from tests.support.flag_rows import FlagServer, Row
from tests.support.v2_client import OK, V2Client, fin_each
from tests.support.waiting import wait_for

ATTEMPTS = 5


def topic(server: FlagServer, name: str) -> dict[str, Any]:
    """Return a topic's part of /stats."""
    (found,) = server.get_json(f"/stats?format=json&topic={name}")["topics"]
    return dict(found)


def data_path(server: FlagServer) -> None:
    """nsqd stores logs in this folder, and nowhere else."""
    server.post("/topic/create?topic=placed")
    data = Path(server.places["data"])
    assert (data / "topics" / "t-placed").is_dir()
    assert not (server.folder / "topics").exists()


def max_bytes_per_file(server: FlagServer) -> None:
    """A log continues in a new file before it exceeds this size."""
    for _ in range(8):
        server.post("/pub?topic=rolling", b"x" * 6000)
    folder = Path(server.places["data"]) / "topics" / "t-rolling"
    files = list(folder.glob("*.log"))
    assert len(files) >= 3
    assert all(file.stat().st_size <= 20_000 for file in files)


def mem_queue_size(server: FlagServer) -> None:
    """An ephemeral channel holds this number of messages; further ones are dropped."""
    server.post("/topic/create?topic=small%23ephemeral")
    server.post("/channel/create?topic=small%23ephemeral&channel=c%23ephemeral")
    server.post("/mpub?topic=small%23ephemeral", b"x\n" * 20)
    (channel,) = topic(server, "small%23ephemeral")["channels"]
    assert channel["depth"] == 5


def sync_every(server: FlagServer) -> None:
    """This number of messages triggers a sync; fewer may stay unsynced."""
    with V2Client(server) as line:
        assert line.ask(mpub("unsynced", [b"x"] * 6)) == OK
        assert topic(server, "unsynced")["unsynced_messages"] == 6
        assert line.ask(pub("unsynced", b"x")) == OK
        wait_for(lambda: topic(server, "unsynced")["unsynced_messages"] == 0)


def sync_timeout(server: FlagServer) -> None:
    """Messages are synced within this time, well before the default 2 s."""
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        server.post("/pub?topic=soon", b"x")
        wait_for(lambda: topic(server, "soon")["unsynced_messages"] == 0)
        if time.monotonic() - began < 1.5:
            return
    raise AssertionError("never synced in time")


def finish(server: FlagServer, name: str) -> None:
    """Publish, consume and finish 10 messages."""
    with V2Client(server) as line:
        assert line.ask(sub(name, "c")) == OK
        assert line.ask(mpub(name, [b"x"] * 10)) == OK
        line.send(rdy(10))
        line.send(fin_each(line.messages(10)))
        assert line.ask(b"CLS\n")[1] == b"CLOSE_WAIT"


def latency(server: FlagServer, name: str) -> dict[str, Any]:
    """Return the channel's latency in /stats."""
    found: dict[str, Any] = server.channel(name, "c")["e2e_processing_latency"]
    return found


def percentiles(server: FlagServer) -> None:
    """/stats shows these percentiles in descending order."""
    for _ in range(ATTEMPTS):
        finish(server, "latency")
        found = latency(server, "latency")
        if found["count"]:
            assert [entry["quantile"] for entry in found["percentiles"]] == [1, 0.95, 0.5]
            assert all(entry["value"] > 0 for entry in found["percentiles"])
            return
    raise AssertionError("never counted")


def window_time(server: FlagServer) -> None:
    """Latencies older than this are not counted, without the flag those older than ten minutes."""
    finish(server, "window")
    wait_for(lambda: latency(server, "window")["count"] == 0)


def log_level(server: FlagServer) -> None:
    """Records below the level are not logged."""
    make_errors(server)
    assert " INFO: " not in server.log_text


def log_prefix(server: FlagServer) -> None:
    """Every log line begins with this prefix."""
    make_errors(server)
    assert all(line.startswith("<here> 20") for line in server.log_text.splitlines())


def make_errors(server: FlagServer) -> None:
    """Cause a warning or error in the log, and many records below that."""
    with V2Client(server) as line:
        line.ask(b"NONSENSE\n")
    server.request("GET", "/ping")
    server.request("POST", "/mpub?topic=t&binary=maybe", bytes(4))
    wait_for(lambda: 'deprecated value "maybe" used for /mpub?binary=' in server.log_text)


def verbose(server: FlagServer) -> None:
    """Everything is logged, whatever the level."""
    wait_for(lambda: " INFO: TCP: listening on " in server.log_text)


def broadcast_address(server: FlagServer) -> None:
    """/info returns this address."""
    assert server.get_json("/info")["broadcast_address"] == server.places["name"]


GROUPS = {
    "storage": [
        Row("data-path", "{data}", data_path),
        Row("max-bytes-per-file", 20_000, max_bytes_per_file),
        Row("mem-queue-size", 5, mem_queue_size),
        Row("sync-every", 7, sync_every),
        Row("sync-timeout", "1h", sync_every),
        Row("log-level", "Warn", log_level),
        Row("log-prefix", "<here> ", log_prefix),
        Row("broadcast-address", "{name}", broadcast_address),
        Row(
            "e2e-processing-latency-percentile",
            ["0.5", "1.0,0.95"],
            percentiles,
        ),
    ],
    "times": [
        Row("sync-every", 1_000_000, sync_timeout),
        Row("sync-timeout", "100ms", sync_timeout),
        Row("log-level", "fatal", verbose),
        Row("verbose", True, verbose),
        Row(
            "e2e-processing-latency-percentile",
            ["0.99"],
            window_time,
        ),
        Row("e2e-processing-latency-window-time", "1s", window_time),
    ],
}
