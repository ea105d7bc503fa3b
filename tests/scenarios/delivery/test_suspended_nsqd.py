"""After nsqd was suspended, clients are not punished for what happened meanwhile."""

import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparq.protocol.commands import rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client, fin_each

MESSAGES = 200


@contextmanager
def suspended(server: NsqdServer, seconds: float) -> Iterator[None]:
    """Suspend the process for at least this time."""
    os.kill(server.pid, signal.SIGSTOP)
    until = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        os.kill(server.pid, signal.SIGCONT)


def identify(heartbeat_ms: int) -> bytes:
    settings = json.dumps({"heartbeat_interval": heartbeat_ms}).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(settings)) + settings


def test_a_resumed_nsqd_first_reads_its_clients_input(tmp_path: Path) -> None:
    """A suspended nsqd first reads what its clients have sent in the meantime.

    It was suspended for longer than the message timeout and the heartbeats allow. Their FINs count,
    and no client is disconnected.
    """
    with spawn_nsqd(tmp_path, "--msg-timeout=2s") as server, V2Client(server) as line:
        assert line.ask(identify(heartbeat_ms=1_000)) == OK
        assert line.ask(sub("t", "c")) == OK
        server.post("/mpub?topic=t", b"\n".join(b"%d" % number for number in range(MESSAGES)))
        line.send(rdy(2 * MESSAGES))
        messages = line.messages(MESSAGES)
        with suspended(server, 3.0):
            line.send(fin_each(messages))
        server.post("/pub?topic=t", b"one more")

        assert [b"one more"] == [message.body for message in line.messages(1)]
        figures = server.channel("t", "c")
        counts = ("timeout_count", "depth", "in_flight_count", "client_count")
        assert [0, 0, 1, 1] == [figures[name] for name in counts]
