"""What nsqd may need in trouble is loaded at the start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from sparq.program.supervised import HOST
from sparq.protocol.commands import cls, dpub, fin, identify, mpub, pub, rdy, req, sub, touch
from tests.support import strace
from tests.support.servers import NsqdServer, start_first
from tests.support.v2_client import Closed, V2Client

ROOT = Path(__file__).parents[3]
FAULTS = (
    ("openat", "EMFILE"),
    ("fdatasync,fsync", "EIO"),
    ("pwrite64,pwritev,pwritev2", "ENOSPC"),
    ("pread64,renameat,unlinkat,ftruncate", "EIO"),
)
GETS = (
    *(
        "/ping",
        "/info",
        "/stats",
        "/stats?format=json",
        "/metrics",
        "/config/nsqlookupd_tcp_addresses",
    ),
    *("/drain", "/policies", "/channel/messages?topic=t&channel=c", "/topic/messages?topic=t"),
    *("/nothing", "/message?topic=t&index=0", "/debug/pprof/", "/debug/pprof/goroutine?debug=1"),
    *("/topic/segments?topic=t", "/channel/ranges?topic=t&channel=c"),
)
POSTS = (
    *("/topic/pause?topic=t", "/topic/unpause?topic=t", "/channel/pause?topic=t&channel=c"),
    *("/channel/unpause?topic=t&channel=c", "/channel/seek?topic=t&channel=c&to=earliest"),
    *(
        "/channel/empty?topic=t&channel=c",
        "/topic/create?topic=n",
        "/channel/create?topic=n&channel=c",
    ),
    *(
        "/topic/delete?topic=n",
        "/channel/delete?topic=t&channel=x",
        "/topic/drain?topic=t&on=false",
    ),
    *("/message/redrive?topic=t&channel=c", "/policies", "/pub?topic=t"),
)


def work(server: NsqdServer) -> None:
    """Use every kind of request once, whatever is answered."""
    for identity in ({}, {"snappy": True}, {"deflate": True}):
        with V2Client(server) as line:
            line.send(identify(json.dumps({"client_id": "x", **identity}).encode()))
    with V2Client(server) as line, contextlib.suppress(Closed):
        line.send(pub("t", b"x") + mpub("t", [b"y", b"z"]) + dpub("t", 5, b"d"))
        line.send(sub("t", "c") + rdy(100))
        for number, message in enumerate(line.messages_within(0.2)):
            line.send(touch(message.id))
            line.send(req(message.id, 1) if number % 2 else fin(message.id))
        line.send(cls() + b"BAD\n")
        line.messages_within(0.05)
    for path in GETS:
        server.request("GET", path)
    for path in POSTS:
        # Not waited for: on a failing disk a change may be answered after seconds.
        request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
        with socket.create_connection((HOST, server.http_port)) as line:
            line.sendall(request.encode())


@pytest.mark.skipif(bool(strace.missing()), reason=strace.missing())
def test_nsqd_imports_nothing_after_its_start(tmp_path: Path) -> None:
    """No request and no fault makes nsqd load a module after it has started.

    A module cannot be loaded when files cannot be opened: then what needs it would fail.
    """
    record, folder = tmp_path / "record", tmp_path / "nsqd"
    folder.mkdir()
    flags = (f"--data-path={folder}", "--broadcast-address=127.0.0.1", "--max-bytes-per-file=4096")
    prefix = ("env", f"PYTHONPATH={ROOT}", f"SEALED_RECORD={record}")
    with NsqdServer("tests.support.sealed_nsqd", folder, flags, prefix) as server:
        start_first(server)
        os.kill(server.pid, signal.SIGUSR1)
        work(server)
        for calls, error in FAULTS:
            with strace.attached(server.pid, calls, error):
                work(server)
        work(server)
        assert server.terminate() == 0

    assert "Traceback" not in server.log_text
    assert record.read_text() == ""
