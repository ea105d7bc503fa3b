"""A-1: AUTH denies by default. A-2: a client's identity never comes from its own claims."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.broker.session import V2Session
from sparq.options.units import MILLISECOND
from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.authd import answer, entry, running
from tests.support.certificates import Certificates
from tests.support.v2_client import AsyncV2Client, Closed
from tests.support.waiting import until

ALL = answer(entry())
BODY = b"forbidden"
SECRET = b"key&common_name=admin&tls=true"

ATTEMPTS = {
    "PUB": c.pub("t", BODY),
    "MPUB": c.mpub("t", [BODY, BODY]),
    "DPUB": c.dpub("t", 1, BODY),
    "SUB": c.sub("t", "c"),
    "ATTACH": c.attach("t", "c"),
    "ENDS": c.ends("t"),
    "READ": c.read("t", "00", 0, 1 << 40, 1 << 20),
    "COMMIT": c.commit("t", "c", 1, 1),
}
"""Every command that needs permission. IDENTIFY, AUTH and NOP need none."""

BAD_ANSWERS: dict[str, tuple[int, bytes] | bytes] = {
    "500": (500, ALL),
    "404": (404, ALL),
    "403": (403, ALL),
    "204": (204, b""),
    "redirected nowhere": (302, ALL),
    "empty": b"",
    "no JSON": b"yes",
    "null": b"null",
    "a list": b"[true]",
    "true": b"true",
    "no end": ALL[:-1],
    "twice": ALL + ALL,
    "nested": b"[" * 100_000,
    "too long": ALL + b" " * (1 << 20),
    "no authorizations": answer(),
    "null authorizations": b'{"ttl":60,"authorizations":null}',
    "ttl 0": answer(entry(), ttl=0),
    "ttl below 0": answer(entry(), ttl=-1),
    "ttl true": answer(entry(), ttl=True),
    "ttl a text": answer(entry(), ttl="3600"),
    "ttl not there": answer(entry(), ttl=None),
    "ttl a fraction": answer(entry(), ttl=0.5),
    "ttl NaN": answer(entry()).replace(b"3600", b"NaN"),
    "permissions a text": answer({**entry(), "permissions": "publish subscribe"}),
    "permission *": answer(entry(permissions=("*",))),
    "permission in capitals": answer(entry(permissions=("PUBLISH", "SUBSCRIBE"))),
    "topic a list": answer({**entry(), "topic": [".*"]}),
    "channels a text": answer({**entry(), "channels": ".*"}),
    "a bad pattern beside a good one": answer(entry(), entry(topic="(")),
    "no topic that is called so": answer(entry(topic="^other$"), entry(topic="^t.$")),
    "anchored": answer(entry(topic="^$")),
    "no permissions": answer(entry(permissions=())),
    "no channels": answer(entry(channels=())),
    "another channel": answer(entry(channels=("^cc$",), permissions=("publish",))),
}


@asynccontextmanager
async def guarded(folder: Path, *addresses: str, **changes: Any) -> AsyncIterator[Daemon]:
    """Run an nsqd that queries these auth servers."""
    daemon = await start(folder, auth_http_addresses=addresses, **changes)
    try:
        yield daemon
    finally:
        await stop(daemon)


async def attempt(client: AsyncV2Client, command: bytes) -> list[tuple[int, bytes]]:
    """Send the command and then an invalid one; return all answers."""
    client.send(command + b"NONSENSE\n")
    answers = []
    with contextlib.suppress(Closed):
        while True:
            answers.append(await client.frame())
    return answers


def was_let_in(daemon: Daemon, answers: list[tuple[int, bytes]]) -> bool:
    """Whether the command had an effect: created a topic, or got another answer than a refusal."""
    refusals = (b"E_UNAUTHORIZED", b"E_AUTH_FAILED", b"E_AUTH_FIRST")
    made = set(daemon.nsqd.broker.topics) - {"seen"}
    [(kind, text), *more] = answers
    return bool(made or more) or kind != 1 or not text.startswith(refusals)


async def test_no_command_is_executed_without_a_valid_auth_response(tmp_path: Path) -> None:
    """No command is executed or stored without AUTH, or with an invalid auth server response."""
    async with running(*BAD_ANSWERS.values()) as authd, guarded(tmp_path, authd.address) as daemon:
        for command in ATTEMPTS.values():
            async with connected(daemon) as client:  # no AUTH is sent
                assert not was_let_in(daemon, await attempt(client, command))
        for name, said in BAD_ANSWERS.items():
            authd.answers[:] = [said if isinstance(said, tuple) else (200, said)]
            for about, command in ATTEMPTS.items():
                async with connected(daemon) as client:
                    client.send(c.auth(b"key"))
                    kind, data = await client.frame()
                    answers = [(kind, data)]
                    if kind == 0:  # authenticated, but still without permissions
                        answers = await attempt(client, command)
                    assert not was_let_in(daemon, answers), (name, about, answers)
        assert {} == daemon.nsqd.broker.topics


async def test_permitted_commands_are_executed(tmp_path: Path) -> None:
    """With a valid auth response the same commands succeed: the test above could have failed."""
    async with running(ALL) as authd, guarded(tmp_path, authd.address) as daemon:
        for name, command in ATTEMPTS.items():
            async with connected(daemon) as client:
                client.send(c.auth(b"key"))
                assert 0 == (await client.frame())[0]
                assert was_let_in(daemon, await attempt(client, command)), name


async def test_auth_fails_if_the_auth_server_fails(tmp_path: Path) -> None:
    """AUTH fails if the auth server is slow, down, truncates its body or sends a gzip bomb."""
    bomb = gzip.compress(ALL + b" " * (64 << 20))

    async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(ALL) + 1) + ALL)
        writer.close()

    async def inflate(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(bomb) + bomb)
        writer.close()

    servers = [await asyncio.start_server(one, "127.0.0.1", 0) for one in (break_off, inflate)]
    places = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    async with running(ALL) as gone:
        pass
    async with running(ALL) as slow:
        slow.open.clear()
        for number, place in enumerate([gone.address, slow.address, *places]):
            timeout = 300 * MILLISECOND if place == slow.address else 20_000 * MILLISECOND
            changes = {"http_client_request_timeout": timeout}
            folder = tmp_path / str(number)
            async with guarded(folder, place, **changes) as daemon, connected(daemon) as client:
                client.send(c.auth(b"key") + ATTEMPTS["PUB"])
                # The slow one is given up long before the default of 5 s.
                async with asyncio.timeout(3 if place == slow.address else None):
                    assert b"E_AUTH_FAILED AUTH failed" == await client.error()
                assert {} == daemon.nsqd.broker.topics
    for server in servers:
        server.close()


def session_of(daemon: Daemon) -> V2Session:
    """Return the session of the only client."""
    (session,) = daemon.nsqd.broker.sessions.values()
    return session


async def nobody(daemon: Daemon) -> None:
    """Wait until the last client is removed."""

    async def is_empty() -> bool:
        return not daemon.nsqd.broker.sessions

    await until(is_empty)


SPOOFED = {
    "common_name": "admin",
    "tls": "true",
    "remote_ip": "10.0.0.1",
    "remote_address": "10.0.0.1:1",
    "secret": "other",
    "identity": "admin",
    "auth_identity": "admin",
    "authed": True,
    "auth_required": False,
    "permission_count": 9,
    "client_id": "admin",
    "hostname": "10.0.0.1",
    "user_agent": "admin",
    "ttl": 1 << 40,
    "authorizations": [entry()],
}


FOREIGN = "eve"
"""The name in the certificate that the given CA has not signed."""


@pytest.mark.parametrize("method", ["get", "post"])
async def test_identity_does_not_come_from_identify(tmp_path: Path, method: str) -> None:
    """Auth servers get the peer's address and certificate; values from IDENTIFY change nothing.

    With the policy `require` the certificate's name is not verified, as in Go (docs/access.md).
    """
    certificates = Certificates.make(tmp_path)
    authority = str(tmp_path / "ca.pem")
    plain: dict[str, Any] = {}
    tls = certificates.options(tls_root_ca_file=authority)
    anybody = {**tls, "tls_client_auth_policy": "require"}
    signed = {**tls, "tls_client_auth_policy": "require-verify"}
    cases = [(plain, "", ""), (signed, "signed", "joe"), (anybody, "foreign", FOREIGN)]
    for number, (of_tls, name, common_name) in enumerate(cases):
        context = certificates.client(name) if name else None
        options = {**of_tls, "auth_http_request_method": method}
        folder = tmp_path / str(number)
        async with running(ALL) as authd, guarded(folder, authd.address, **options) as daemon:
            for said in ({}, SPOOFED):
                async with connected(daemon) as client:
                    await client.upgrade(context, **said)
                    client.send(c.auth(SECRET))
                    assert "somebody" == json.loads(await client.response())["identity"]
                    assert "somebody" == session_of(daemon).auth_identity
                    assert session_of(daemon).remote_address.startswith("127.0.0.1:")
                await nobody(daemon)
            values = {"common_name": common_name, "remote_ip": "127.0.0.1"}
            values |= {"secret": SECRET.decode(), "tls": "true" if name else "false"}
            assert [values, values] == [asked for _, _, asked in authd.asked]
