"""`sparq admin audit`: the entries of nsqadmin's log, page by page, and what to do without them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.servers import free_port
from tests.tools.admin.conftest import Run

ENTRIES = [
    {
        **{"time": f"2026-11-23T12:00:{number:02}Z", "user": "ada", "via": "token"},
        **{"action": "delete_channel", "topic": "clicks", "outcome": "done", "detail": "\x1b[2J"},
    }
    for number in range(30, 0, -1)
]
PAGE = 20


class FakeAdmin:
    """An nsqadmin's audit route: 20 entries a page, with a token."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        url = urlsplit(head.split()[1])
        query = dict(parse_qsl(url.query))
        self.seen.append(query)
        self.paths.append(url.path)
        begin = int(query.get("before", "0"))
        some = ENTRIES[begin : begin + min(PAGE, int(query["limit"]))]
        following = str(begin + len(some)) if begin + len(some) < len(ENTRIES) else None
        is_allowed = "authorization: bearer secret" in head.lower()
        document = {"entries": some, "next": following} if is_allowed else {"message": "FORBIDDEN"}
        body = json.dumps(document).encode()
        status = b"200 OK" if is_allowed else b"403 Forbidden"
        writer.write(b"HTTP/1.0 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def fake() -> Iterator[FakeAdmin]:
    """An nsqadmin."""
    found = FakeAdmin()
    yield found
    found.close()


def test_entries_are_shown(fake: FakeAdmin, admin: Run) -> None:
    """As a table or JSON, over pages, with filters, and with nothing that a terminal would obey."""
    flags = (f"--nsqadmin-http-address=127.0.0.1:{fake.port}", "--token=secret")

    ran = admin("audit", *flags, "--limit=25", "--user=ada", "--action=delete_channel")
    document = admin(
        "audit",
        f"--nsqadmin-http-address=http://127.0.0.1:{fake.port}/base/",
        "--token=secret",
        "--json",
    ).document

    assert (0, 26, "\x1b" in ran.out) == (ran.status, len(ran.rows), False)
    assert ["TIME", "USER", "VIA", "REMOTE", "ACTION"] == ran.rows[0][:5]
    assert ["2026-11-23T12:00:30Z", "ada", "token", "-", "delete_channel"] == ran.rows[1][:5]
    asked = {"limit": "25", "user": "ada", "action": "delete_channel"}
    assert [asked, {**asked, "limit": "5", "before": "20"}] == fake.seen[:2]
    assert ENTRIES == document["entries"]
    assert {"/api/v2/audit", "/base/api/v2/audit"} == {*fake.paths}


def test_without_nsqadmin_or_its_leave(fake: FakeAdmin, admin: Run) -> None:
    """One line, with what to do."""
    ran = admin("audit", f"--nsqadmin-http-address=127.0.0.1:{fake.port}")
    assert 1 == ran.status
    assert "use --token=@FILE with a token that may read" in ran.err
    port = free_port()
    ran = admin("audit", f"--nsqadmin-http-address=127.0.0.1:{port}")
    assert f"nsqadmin 127.0.0.1:{port}: connection refused: start it, or name another" in ran.err
    ran = admin("audit", "--nsqadmin-http-address=nonsense")
    assert (1, "--nsqadmin-http-address not an address" in ran.err) == (ran.status, True)
