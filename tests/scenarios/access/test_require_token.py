"""`--require-token`: an nsqd registers only with a valid token that has the role `register`."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import tokens
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import instant
from tests.nsqd import daemon as nsqds
from tests.support.options import changed
from tests.support.waiting import until

FACTS = {"broadcast_address": "nsqd-1", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
OK = b"OK"


class TokenLookupd:
    """An nsqlookupd that requires tokens, and its token file."""

    def __init__(self, folder: Path) -> None:
        self.file, self.audit = folder / "tokens", folder / "audit"
        self.shown: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        for name, roles, last in (
            ("all", "register", ""),
            ("clicks", "register:clicks*", ""),
            ("admin", "administer,consume,publish", ""),
            ("old", "register", "2020-01-01"),
        ):
            self.shown[name], self.lines[name] = tokens.make(name, roles, last)
        self.shown["wrong"] = tokens.make("wrong", "register")[0]
        self.write()
        self.lookupd: Nsqlookupd

    def write(self) -> None:
        """Write the current lines to the token file."""
        self.file.write_text("\n".join(self.lines.values()))

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Nsqlookupd]:
        """Run the nsqlookupd on free ports."""
        free = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        files = {"token_file": str(self.file), "audit_file": str(self.audit)}
        given = {**free, **files, "require_token": True, **options}
        self.lookupd = Nsqlookupd(changed(NsqlookupdOptions(), **given))
        await self.lookupd.start()
        try:
            yield self.lookupd
        finally:
            await self.lookupd.stop()

    @property
    def known(self) -> str:
        """All registrations, as text."""
        return repr(sorted(key for *key, _ in self.lookupd.registry.registrations()))

    def refused(self) -> dict[str, int]:
        """The number of refusals, by reason."""
        assert self.lookupd.access is not None
        return {reason: n for reason, n in self.lookupd.access.refused.items() if n}


class RawNsqd:
    """A raw connection to nsqlookupd, as an nsqd opens it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, command: bytes) -> bytes:
        """Send a command and return its response; empty: the connection was closed."""
        self.writer.write(command)
        try:
            async with asyncio.timeout(30):
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return b""


@asynccontextmanager
async def nsqd(token_lookupd: TokenLookupd) -> AsyncIterator[RawNsqd]:
    """Open a connection and send the magic bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", token_lookupd.lookupd.tcp_port)
    writer.write(b"  V1")
    yield RawNsqd(reader, writer)
    writer.close()


def identify(**more: Any) -> bytes:
    """An IDENTIFY command with additional fields."""
    body = json.dumps({**FACTS, **more}).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


@pytest.fixture
def token_lookupd(tmp_path: Path) -> TokenLookupd:
    """An nsqlookupd that is not started yet."""
    return TokenLookupd(tmp_path)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (None, "a token is required (nsqd's --lookupd-token)"),
        ("", "a token is required (nsqd's --lookupd-token)"),
        (7, "a token is required (nsqd's --lookupd-token)"),
        ("wrong", "unknown token"),
        ("old", "this token has expired"),
        ("admin", "this token may not register"),
    ],
)
async def test_registering_without_a_valid_token_is_refused(
    token_lookupd: TokenLookupd, shown: Any, why: str
) -> None:
    """nsqlookupd answers IDENTIFY with E_UNAUTHORIZED and the reason, and closes the connection.

    So Go's nsqd, which sends no token, cannot register.
    """
    async with token_lookupd.running(), nsqd(token_lookupd) as peer:
        before = token_lookupd.known
        more = {} if shown is None else {"token": token_lookupd.shown.get(shown, shown)}
        assert f"E_UNAUTHORIZED IDENTIFY {why}".encode() == await peer.ask(identify(**more))
        assert b"" == await peer.ask(b"REGISTER t\n")
        assert before == token_lookupd.known
        assert 1 == sum(token_lookupd.refused().values())
    (entry,) = map(json.loads, token_lookupd.audit.read_text().splitlines())
    assert ("IDENTIFY", "refused") == (entry["action"], entry["outcome"])
    assert "nsq_" not in token_lookupd.audit.read_text()


async def test_register_is_limited_to_the_tokens_pattern(token_lookupd: TokenLookupd) -> None:
    """REGISTER for a topic outside the token's pattern gets E_UNAUTHORIZED.

    IDENTIFY accepts `Token` in any case, as it does its other keys.
    """
    async with token_lookupd.running(), nsqd(token_lookupd) as peer:
        assert b"version" in await peer.ask(identify(Token=token_lookupd.shown["clicks"]))
        assert OK == await peer.ask(b"REGISTER clicks.1 c\n")
        text = b"E_UNAUTHORIZED REGISTER this token may not register this topic"
        assert text == await peer.ask(b"REGISTER orders\n")
        assert "orders" not in token_lookupd.known
        assert {"forbidden": 1} == token_lookupd.refused()


async def test_a_removed_tokens_connection_is_closed(token_lookupd: TokenLookupd) -> None:
    """After SIGHUP, the removed token's connection is closed; an nsqd with another token stays."""
    async with token_lookupd.running(), nsqd(token_lookupd) as gone, nsqd(token_lookupd) as stays:
        assert b"version" in await gone.ask(identify(token=token_lookupd.shown["all"]))
        assert OK == await gone.ask(b"REGISTER t\n")
        assert b"version" in await stays.ask(identify(token=token_lookupd.shown["clicks"]))
        assert OK == await stays.ask(b"REGISTER clicks\n")
        del token_lookupd.lines["all"]
        token_lookupd.write()
        token_lookupd.lookupd.reload()
        assert b"" == await gone.ask(b"")
        assert OK == await stays.ask(b"PING\n")
        assert [1, 0] == [
            len(token_lookupd.lookupd.registry.producers(name, instant()))
            for name in ("clicks", "t")
        ]


async def test_nsqd_sends_its_token_to_nsqlookupd(
    token_lookupd: TokenLookupd, tmp_path: Path
) -> None:
    """nsqd sends its token in IDENTIFY and when it looks up a new topic's channels.

    SIGHUP reads the token file again; a missing file leaves the old token in use.
    """
    data, file = tmp_path / "data", tmp_path / "token"
    data.mkdir()
    file.write_text(token_lookupd.shown["wrong"])
    async with token_lookupd.running() as lookupd:
        lookupd.registry.create_channel("t", "elsewhere")
        address = (f"127.0.0.1:{lookupd.tcp_port}",)
        daemon = await nsqds.start(data, nsqlookupd_tcp_addresses=address, lookupd_token=f"@{file}")
        try:
            await until(lambda: token_lookupd.refused().get("unauthorised", 0) > 0)
            assert "'producer'" not in token_lookupd.known
            file.write_text(token_lookupd.shown["all"])
            daemon.reloader.reload()
            await until(lambda: daemon.peers._peers[address[0]].http_address is not None)
            await daemon.post("/topic/create?topic=t")
            topic = daemon.nsqd.broker.topics["t"]
            await until(lambda: "elsewhere" in topic.channels)
            await until(lambda: len(lookupd.registry.producers("t", instant())) == 1)
            status, answer = await daemon.ask("GET", "/config/lookupd_token")
            assert (200, f"@{file}".encode()) == (status, answer)
            file.unlink()
            daemon.reloader.reload()
            assert token_lookupd.shown["all"] == daemon.nsqd.lookupd_token
        finally:
            await nsqds.stop(daemon)
