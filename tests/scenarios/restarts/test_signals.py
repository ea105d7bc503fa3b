"""The end of a daemon's process: repeated signals, and the time between "bye" and the exit."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from sparq.protocol.commands import rdy, sub
from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import MAGIC, V2Client
from tests.support.waiting import wait_for

TOPICS = 100
LARGE_BYTES = 16 << 20
"""More than the kernel buffers for a client that does not read."""
END_SECONDS_MAX = 0.5
"""Limit for a busy machine; an idle one needs less than 0.1."""

_BYE = re.compile(r"\[\w+\] (\S+ \S+) INFO: (?:NSQ: )?bye\n\Z")


def ends(server: Server, number: signal.Signals, gap_seconds: float) -> tuple[int, float]:
    """Send a signal, and again every `gap_seconds` until the process has ended.

    Returns:
        The exit status, and the seconds from the log's last line to the end.
    """
    process = server.process
    assert process is not None
    process.send_signal(number)
    while True:
        deadline = time.monotonic() + gap_seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if process.returncode is not None:
            break
        process.send_signal(number)
    gone = time.time()
    server.process = None
    bye = _BYE.search(server.log_text)
    assert bye is not None, server.log_text[-500:]
    said = datetime.strptime(bye[1], "%Y/%m/%d %H:%M:%S.%f").timestamp()
    return process.returncode, gone - said


@pytest.mark.parametrize("spawn", [spawn_nsqd, spawn_nsqlookupd])
@pytest.mark.parametrize(
    ("number", "gap_seconds"), [(signal.SIGTERM, 0.002), (signal.SIGINT, 0.02)]
)
def test_repeated_signals_end_a_daemon_with_status_0(
    tmp_path: Path, spawn: Callable[..., Server], number: signal.Signals, gap_seconds: float
) -> None:
    """Repeated signals do not disturb the exit: status 0, 0.5 s after "bye", and all topics."""
    with spawn(tmp_path) as daemon:
        for topic in range(TOPICS * (spawn is spawn_nsqd)):
            daemon.post(f"/pub?topic=t{topic}", b"x" * 1000)
        status, seconds = ends(daemon, number, gap_seconds)

        assert (status, seconds < END_SECONDS_MAX) == (0, True), seconds
        if spawn is spawn_nsqd:
            daemon.start()
            assert len(daemon.get_json("/stats?format=json")["topics"]) == TOPICS


def first_client(nsqd: Server) -> V2Client:
    """Connect to an nsqd while it starts, as its first client."""
    clients: list[V2Client] = []

    def has_come() -> bool:
        try:
            clients.append(V2Client(nsqd, b""))
        except ConnectionRefusedError:
            return False
        return True

    nsqd.launch()
    wait_for(has_come)
    nsqd.wait_ready()
    return clients[0]


def test_nsqd_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    """nsqd exits without waiting for a client that does not read; its message is not lost.

    The client is the only one, so no other client has disconnected before.
    """
    with spawn_nsqd(tmp_path, f"--max-msg-size={LARGE_BYTES}") as nsqd:
        nsqd.terminate()
        with first_client(nsqd) as client:
            nsqd.post("/pub?topic=t", b"x" * LARGE_BYTES)
            client.send(MAGIC + sub("t", "c") + rdy(1))
            wait_for(lambda: nsqd.channel("t", "c")["in_flight_count"] == 1)

            assert nsqd.terminate() == 0
        nsqd.start()
        channel = nsqd.channel("t", "c")
        assert (1, 0) == (channel["depth"], channel["in_flight_count"])
