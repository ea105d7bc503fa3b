"""`--token-file` in a running nsqd: reload, expiry on open connections, auth servers, audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import tokens
from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, start, stop
from tests.support import authd
from tests.support.v2_client import OK, AsyncV2Client

FAILED = (1, b"E_AUTH_FAILED AUTH failed")
SOON_SECONDS = 0.3


class TokenNsqd:
    """An nsqd with a token file whose lines a test changes."""

    def __init__(self, folder: Path) -> None:
        self.file, self.audit_file = folder / "tokens", folder / "audit"
        self.lines: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        self.daemon: Daemon

    def give(self, name: str, roles: str, last: str = "") -> str:
        """Make a token of this name; it is valid after the next reload."""
        token, line = tokens.make(name, roles, last)
        self.lines[name], self.shown[name] = line, token
        self.write()
        return token

    def write(self) -> None:
        """Write the current lines to the token file."""
        self.file.write_text("\n".join(self.lines.values()) + "\n")

    def reload(self) -> None:
        """Reload, as SIGHUP does."""
        self.daemon.reloader.reload()

    def change(self, name: str, roles: str) -> None:
        """Give a token other roles; an empty text removes the token."""
        words = self.lines.pop(name).split()
        if roles:
            self.lines[name] = " ".join((words[0], roles, *words[2:]))
        self.write()
        self.reload()

    @asynccontextmanager
    async def running(self, folder: Path, **options: Any) -> AsyncIterator[Daemon]:
        """Run nsqd with these options."""
        data = folder / "data"
        data.mkdir(exist_ok=True)
        files = {"token_file": str(self.file), "audit_file": str(self.audit_file)}
        self.daemon = await start(data, **files, **options)
        try:
            yield self.daemon
        finally:
            await stop(self.daemon)

    @asynccontextmanager
    async def connection(self, name: str = "") -> AsyncIterator[AsyncV2Client]:
        """A connection that has authenticated with a token."""
        talk = await AsyncV2Client.connect(self.daemon.tcp)
        if name:
            kind, answer = await talk.ask(c.auth(self.shown[name].encode()))
            assert kind == 0, answer
        yield talk
        talk.writer.close()

    async def http(self, method: str, target: str, name: str = "", body: bytes = b"x") -> int:
        """Send a request with a token; returns the status."""
        shown = f"Authorization: Bearer {self.shown[name]}\r\n" if name else ""
        rest = f"{shown}Content-Length: {len(body)}\r\n\r\n".encode() + body
        status, _, _ = await self.daemon.raw(f"{method} {target} HTTP/1.1", rest)
        return status

    def entries(self) -> list[dict[str, Any]]:
        """The entries of the audit log."""
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]

    def refused(self) -> dict[str, int]:
        """The number of refusals, by reason."""
        assert self.daemon.nsqd.access is not None
        return {reason: n for reason, n in self.daemon.nsqd.access.refused.items() if n}


@pytest.fixture
def token_nsqd(tmp_path: Path) -> TokenNsqd:
    """An nsqd that is not started yet."""
    return TokenNsqd(tmp_path)


async def test_a_token_for_one_topic_shows_no_client_of_another(
    token_nsqd: TokenNsqd, tmp_path: Path
) -> None:
    """/stats of one topic lists its own producers for a token that may read only that topic."""
    for name, granted in (("all", "publish,read"), ("a", "publish:a"), ("reads", "read:a")):
        token_nsqd.give(name, granted)
    async with (
        token_nsqd.running(tmp_path) as daemon,
        token_nsqd.connection("all") as stranger,
        token_nsqd.connection("a") as own,
    ):
        assert [OK] * 2 == [await stranger.ask(c.pub("b", b"x")), await own.ask(c.pub("a", b"x"))]
        listed = {}
        for name in ("all", "reads"):
            shown = f"Authorization: Bearer {token_nsqd.shown[name]}\r\n\r\n".encode()
            _, _, body = await daemon.raw("GET /stats?format=json&topic=a HTTP/1.1", shown)
            listed[name] = [one["auth_identity"] for one in json.loads(body)["producers"]]
    assert {"all": ["all", "a"], "reads": ["a"]} == listed


async def test_a_removed_tokens_connections_are_closed(
    token_nsqd: TokenNsqd, tmp_path: Path
) -> None:
    """Clients of a removed token get E_AUTH_FAILED and are disconnected; others stay connected."""
    for name in ("gone", "stays"):
        token_nsqd.give(name, "publish,consume")
    async with (
        token_nsqd.running(tmp_path),
        token_nsqd.connection("gone") as consumer,
        token_nsqd.connection("gone") as producer,
        token_nsqd.connection("stays") as other,
    ):
        assert OK == await consumer.ask(c.sub("t", "c"), c.rdy(1))
        assert OK == await producer.ask(c.pub("t", b"1"))
        assert (await consumer.frame())[0] == 2
        token_nsqd.change("gone", "")
        for talk in (consumer, producer):
            assert FAILED == await talk.frame()
            assert b"" == await talk.rest()
        assert OK == await other.ask(c.pub("t", b"2"))
        assert {"unauthorised": 2} == token_nsqd.refused()
    noted = [(entry["user"], entry["detail"]) for entry in token_nsqd.entries()]
    assert [("gone", "E_AUTH_FAILED unauthorised")] * 2 == noted


async def test_new_roles_apply_from_the_next_command(token_nsqd: TokenNsqd, tmp_path: Path) -> None:
    """New roles apply from the next command on; a subscription they do not allow is closed."""
    token_nsqd.give("web", "publish,consume:old")
    async with (
        token_nsqd.running(tmp_path),
        token_nsqd.connection("web") as consumer,
        token_nsqd.connection("web") as producer,
    ):
        assert OK == await consumer.ask(c.sub("old", "c"))
        assert OK == await producer.ask(c.pub("old", b"1"))
        token_nsqd.change("web", "publish:new,consume:new")
        assert (1, b'E_UNAUTHORIZED AUTH failed for SUB on "old" "c"') == await consumer.frame()
        assert b"" == await consumer.rest()
        assert OK == await producer.ask(c.pub("new", b"1"))
        text = b'E_UNAUTHORIZED AUTH failed for PUB on "old" ""'
        assert (1, text) == await producer.ask(c.pub("old", b"2"))
        assert {"forbidden": 2} == token_nsqd.refused()


async def test_an_expired_tokens_connections_are_closed(
    token_nsqd: TokenNsqd, tmp_path: Path
) -> None:
    """A token's open connections are closed at its expiry, even if they send no command."""
    token_nsqd.give("old", "publish,consume", "2020-01-01")
    token_nsqd.give("web", "publish,consume", "2999-01-01")
    async with token_nsqd.running(tmp_path) as daemon:
        access = daemon.nsqd.access
        assert access is not None
        async with (
            token_nsqd.connection("web") as consumer,
            token_nsqd.connection("web") as producer,
        ):
            assert OK == await consumer.ask(c.sub("t", "c"))
            assert 401 == await token_nsqd.http("POST", "/pub?topic=t", "old")
            assert 200 == await token_nsqd.http("POST", "/pub?topic=t", "web")
            async with token_nsqd.connection() as talk:
                assert FAILED == await talk.ask(c.auth(token_nsqd.shown["old"].encode()))
            # The clock is set to shortly before the expiry, which each connection checks by itself.
            end = tokens.end_of("2999-01-01")
            loop = asyncio.get_running_loop()
            begun = loop.time()
            access.now = lambda: end - SOON_SECONDS + loop.time() - begun
            token_nsqd.reload()
            assert OK == await producer.ask(c.pub("t", b"x"))
            for talk in (consumer, producer):
                assert FAILED == await talk.frame()
                assert b"" == await talk.rest()
            assert 401 == await token_nsqd.http("POST", "/pub?topic=t", "web")
        assert {"expired": 5} == token_nsqd.refused()
    users = {(entry["user"], entry["detail"]) for entry in token_nsqd.entries()}
    assert {("old", "expired"), ("old", "E_AUTH_FAILED expired")} <= users
    assert {("web", "expired"), ("web", "E_AUTH_FAILED expired")} <= users


async def test_only_unknown_secrets_go_to_the_auth_server(
    token_nsqd: TokenNsqd, tmp_path: Path
) -> None:
    """Only secrets that are not tokens of the file are sent to an auth server."""
    token_nsqd.give("web", "publish:t")
    token_nsqd.give("old", "publish", "2020-01-01")
    async with (
        authd.running(authd.answer(authd.entry())) as asked,
        token_nsqd.running(tmp_path, auth_http_addresses=(asked.address,)),
    ):
        async with token_nsqd.connection("web") as talk:
            assert OK == await talk.ask(c.pub("t", b"x"))
        async with token_nsqd.connection() as talk:
            assert FAILED == await talk.ask(c.auth(token_nsqd.shown["old"].encode()))
        assert [] == asked.asked
        async with token_nsqd.connection() as talk:
            kind, answer = await talk.ask(c.auth(b"for the authd"))
            assert (0, "somebody") == (kind, json.loads(answer)["identity"])
            token_nsqd.reload()
            assert OK == await talk.ask(c.pub("any", b"x"))
        assert 1 == len(asked.asked)
