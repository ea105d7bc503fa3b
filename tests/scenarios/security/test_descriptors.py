"""A daemon without free file descriptors neither exits nor uses the CPU in a busy loop (N-12)."""

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import pub
from tests.scenarios.security.attackers import cpu_seconds, raw, until, v2
from tests.support.servers import NsqdServer, Server, spawn_nsqd
from tests.support.v2_client import OK

FLOOD = 60
WATCH_SECONDS = 3.0
CPU_SHARE_MAX = 0.2


@contextlib.contextmanager
def starved(server: Server) -> Iterator[None]:
    """Run the block while the daemon cannot open any more files."""
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    used = {int(entry.name) for entry in Path(f"/proc/{server.pid}/fd").iterdir()}
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (max(used) + 1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)


def busy_share(server: Server) -> float:
    """Return the daemon's share of a CPU over some seconds."""
    used, began = cpu_seconds(server), time.monotonic()
    time.sleep(WATCH_SECONDS)
    return (cpu_seconds(server) - used) / (time.monotonic() - began)


def flood(stack: contextlib.ExitStack, ports: tuple[int, ...]) -> None:
    """Open connections that the kernel accepts, but the daemon cannot."""
    for number in range(FLOOD):
        stack.enter_context(raw(ports[number % len(ports)]))


@pytest.mark.timeout(300)
def test_nsqd_works_without_free_file_descriptors(tmp_path: Path) -> None:
    """Without free descriptors nsqd serves its clients, and later new ones again."""
    with spawn_nsqd(tmp_path) as server, v2(server) as old, contextlib.ExitStack() as stack:
        assert OK == old.ask(pub("t", b"x"))
        with starved(server):
            flood(stack, (server.tcp_port, server.http_port))
            share = busy_share(server)
            assert OK == old.ask(pub("t", b"x"))
        assert CPU_SHARE_MAX > share
        stack.close()
        assert OK == old.ask(pub("t", b"x"))
        until(lambda: accepts(server))
        assert 4 == server.get_json("/stats?format=json&topic=t")["topics"][0]["message_count"]


def accepts(server: NsqdServer) -> bool:
    """Whether a new client is served."""
    try:
        with v2(server) as late:
            return late.ask(pub("t", b"x")) == OK
    except OSError:
        return False
