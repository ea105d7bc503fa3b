"""AUTH against a real authd: its requests, the permissions it grants, and failures."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.broker.session import V2Session
from sparq.nsqd.auth import Authenticator
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.tcp import Input
from sparq.program.lifecycle import StartError
from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, start, stop
from tests.support.authd import Authd, answer, entry, running
from tests.support.options import changed
from tests.support.v2_client import FRAME_ERROR, OK, AsyncV2Client
from tests.support.waiting import until

SECRET = b"s3cr3t&=%\xff"
ALL = answer(entry())


async def check_fatal_error(client: AsyncV2Client, text: str, *commands: bytes) -> None:
    """Check that the commands get this error and that nsqd closes the connection."""
    assert (FRAME_ERROR, text.encode()) == await client.ask(*commands)
    assert b"" == await client.rest()


@asynccontextmanager
async def connected_with_secret(
    daemon: Daemon, *, secret: bytes = b""
) -> AsyncIterator[AsyncV2Client]:
    """Connect, and send AUTH if a secret is given."""
    client = await AsyncV2Client.connect(daemon.tcp)
    if secret:
        client.send(c.auth(secret))
        await client.response()
    yield client
    client.writer.close()


@asynccontextmanager
async def nsqd_with_authds(
    folder: Path, *authds: Authd | str, **changes: Any
) -> AsyncIterator[Daemon]:
    """Start an nsqd that uses these authds."""
    addresses = tuple(one if isinstance(one, str) else one.address for one in authds)
    daemon = await start(folder, auth_http_addresses=addresses, **changes)
    try:
        yield daemon
    finally:
        await stop(daemon)


def session_of(daemon: Daemon) -> V2Session:
    """The only client's session."""
    (session,) = daemon.nsqd.broker.sessions.values()
    return session


def expire_permissions(daemon: Daemon) -> None:
    """Make the only client's permissions expire."""
    permissions = session_of(daemon).permissions
    assert permissions is not None
    permissions.begin(-(1 << 62))


@pytest.mark.behaviour("TestClientAuth")
@pytest.mark.parametrize("method", ["get", "post"])
async def test_auth_queries_the_authd_and_returns_the_identity(tmp_path: Path, method: str) -> None:
    """The authd gets secret, IP and TLS state; the reply to AUTH has the client's identity."""
    async with (
        running(answer(entry(), entry("other"))) as authd,
        nsqd_with_authds(tmp_path, authd, auth_http_request_method=method) as daemon,
        connected_with_secret(daemon) as connection,
    ):
        reply = await connection.ask(c.auth(SECRET))

        expected = (
            b'{"identity":"somebody","identity_url":"http://example/somebody","permission_count":2}'
        )
        assert (0, expected) == reply
        values = {
            "common_name": "",
            "remote_ip": "127.0.0.1",
            "secret": SECRET.decode("utf-8", "replace"),
            "tls": "false",
        }
        assert [(method.upper(), "/auth", values)] == authd.asked
        assert "application/vnd.nsq; version=1.0" == authd.headers["Accept"]
        if method == "post":
            assert "application/json" == authd.headers["Content-Type"]
        assert OK == await connection.ask(c.sub("t", "c"))


async def test_stats_have_the_identity_of_a_client(tmp_path: Path) -> None:
    """/stats shows `authed`, `auth_identity` and `auth_identity_url` of a client."""
    async with (
        running(ALL) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=SECRET) as connection,
    ):
        assert OK == await connection.ask(c.sub("t", "c"))

        (client,) = (await daemon.channel("t", "c"))["clients"]
        assert client["authed"] is True
        assert client["auth_identity"] == "somebody"
        assert client["auth_identity_url"] == "http://example/somebody"


READ = c.read("t", "00", 0, 1, 9)
COMMANDS = [
    ("SUB", c.sub("t", "c"), "c"),
    ("PUB", c.pub("t", b"x"), ""),
    ("MPUB", c.mpub("t", [b"x"]), ""),
    ("MPUB", b"MPUB t\n", ""),  # before its body is read
    ("DPUB", c.dpub("t", 1, b"x"), ""),
    ("ATTACH", c.attach("t", "c"), "c"),
    ("ENDS", c.ends("t"), ""),
    ("READ", READ, ""),
    ("COMMIT", c.commit("t", "c", 1, 1), "c"),
]


@pytest.mark.parametrize(("name", "sent", "channel"), COMMANDS)
async def test_commands_without_permission_are_refused(
    tmp_path: Path, name: str, sent: bytes, channel: str
) -> None:
    """Permission for another topic, or the other permission, gives E_UNAUTHORIZED."""
    other = "subscribe" if name.endswith("PUB") else "publish"
    entries = entry("^other$"), entry("^t$", permissions=(other,))
    async with (
        running(answer(*entries)) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=SECRET) as connection,
    ):
        await check_fatal_error(
            connection, f'E_UNAUTHORIZED AUTH failed for {name} on "t" "{channel}"', sent
        )

        assert {} == daemon.nsqd.broker.topics


async def test_patterns_are_not_anchored(tmp_path: Path) -> None:
    """The pattern "lick" matches "clicks"; channel patterns are matched against channels."""
    entries = entry("lick", ("^arch", "x$"), ("subscribe",)), entry("lick", (), ("publish",))
    async with running(answer(*entries)) as authd, nsqd_with_authds(tmp_path, authd) as daemon:
        async with connected_with_secret(daemon, secret=SECRET) as connection:
            assert OK == await connection.ask(c.sub("clicks", "archive"))
        async with connected_with_secret(daemon, secret=SECRET) as connection:
            refused = 'E_UNAUTHORIZED AUTH failed for SUB on "clicks" "my_archive"'
            await check_fatal_error(connection, refused, c.sub("clicks", "my_archive"))
        async with connected_with_secret(daemon, secret=SECRET) as connection:
            # A publish is checked with an empty channel name: a channel pattern must match it.
            await check_fatal_error(
                connection,
                'E_UNAUTHORIZED AUTH failed for PUB on "clicks" ""',
                c.pub("clicks", b"x"),
            )


async def test_range_commands_need_the_subscribe_permission(tmp_path: Path) -> None:
    """ATTACH and COMMIT need permission for the channel; ENDS and READ for any of the topic."""
    entries = entry("^t$", ("^c$",), ("subscribe",))
    async with (
        running(answer(entries)) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=SECRET) as connection,
    ):
        kind, data = await connection.ask(c.attach("t", "c"))
        assert kind == 0
        attached = json.loads(data)
        assert 0 == (await connection.ask(c.ends("t")))[0]
        end = int(attached["end"])
        assert 3 == (await connection.ask(c.read("t", attached["log"], end, end, 9)))[0]
        assert OK == await connection.ask(c.commit("t", "c", int(attached["epoch"]), end))
        await check_fatal_error(
            connection, 'E_UNAUTHORIZED AUTH failed for ATTACH on "t" "d"', c.attach("t", "d")
        )


async def test_without_an_authd_auth_is_disabled(tmp_path: Path) -> None:
    """Without an authd, AUTH gets E_AUTH_DISABLED, and no command requires it."""
    async with nsqd_with_authds(tmp_path) as daemon:
        async with connected_with_secret(daemon) as connection:
            await check_fatal_error(connection, "E_AUTH_DISABLED AUTH disabled", c.auth(b"key"))
        async with connected_with_secret(daemon) as connection:
            assert OK == await connection.ask(c.pub("t", b"x"))


@pytest.mark.behaviour("TestClientAuth")
async def test_auth_without_authorizations_is_refused(tmp_path: Path) -> None:
    """If the authd answers without authorizations, AUTH gets E_UNAUTHORIZED."""
    async with (
        running(answer()) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon) as connection,
    ):
        await check_fatal_error(
            connection, "E_UNAUTHORIZED AUTH no authorizations found", c.auth(b"key")
        )


async def test_auth_fails_if_all_authds_are_down_or_slow(tmp_path: Path) -> None:
    """With one authd down and the other too slow, AUTH fails; no authd is asked twice."""
    async with running(ALL) as gone:
        pass
    async with running(ALL) as slow:
        slow.open.clear()
        async with (
            nsqd_with_authds(
                tmp_path, gone, slow, http_client_request_timeout=300_000_000
            ) as daemon,
            connected_with_secret(daemon) as connection,
        ):
            await check_fatal_error(connection, "E_AUTH_FAILED AUTH failed", c.auth(b"key"))
        assert 1 == len(slow.asked)


async def test_another_authd_is_queried_if_one_fails(tmp_path: Path) -> None:
    """If one authd fails, the other is asked; an authd may be given as a full URL."""
    async with running((500, b"")) as broken, running(ALL) as good:
        there = f"http://{good.address}/some/where?key=1"
        async with nsqd_with_authds(tmp_path, broken, there) as daemon:
            for _ in range(8):
                async with connected_with_secret(daemon, secret=SECRET) as connection:
                    assert OK == await connection.ask(c.pub("t", b"x"))
        method, path, values = good.asked[0]
        assert ("GET", "/some/where", "1") == (method, path, values["key"])
        assert 8 == len(good.asked)


async def test_the_secret_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No failure writes the secret to the log, at any log level."""
    caplog.set_level(logging.DEBUG)
    async with running(ALL) as gone:
        pass
    async with running(b"no JSON", (500, b""), (403, b"")) as authd:
        async with nsqd_with_authds(tmp_path, gone, authd) as daemon:
            for _ in range(3):
                async with connected_with_secret(daemon) as connection:
                    await check_fatal_error(
                        connection, "E_AUTH_FAILED AUTH failed", c.auth(b"s3cr3t")
                    )
        assert "AUTH failed" in caplog.text
        assert "s3cr3t" not in caplog.text
    assert "s3cr3t" not in repr(c.Authenticate(b"s3cr3t"))


@pytest.mark.behaviour("more.auth-ttl-expiry")
async def test_permissions_expire(tmp_path: Path) -> None:
    """After the TTL, the next command that needs permission asks again with the same secret."""
    async with (
        running(answer(entry(), ttl=1)) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=b"key") as connection,
    ):

        async def asked_again() -> bool:
            assert OK == await connection.ask(c.pub("t", b"x"))
            return len(authd.asked) == 2

        await until(asked_again)
        assert "key" == authd.asked[1][2]["secret"]


@pytest.mark.behaviour("more.auth-ttl-expiry")
async def test_commands_wait_in_order_for_renewed_permissions(
    tmp_path: Path,
) -> None:
    """A command that finds its permissions expired and all later ones wait, in order."""
    async with (
        running(ALL) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=b"key") as connection,
    ):
        expire_permissions(daemon)
        authd.open.clear()
        connection.send(c.pub("t", b"a") + c.sub("t", "c") + c.dpub("t", 1, b"b") + c.cls())

        async def is_asked() -> bool:
            return len(authd.asked) == 2

        await until(is_asked)
        assert {} == daemon.nsqd.broker.topics
        authd.open.set()
        replies = [(await connection.frame())[1] for _ in range(4)]
        assert [b"OK", b"OK", b"OK", b"CLOSE_WAIT"] == replies
        assert 2 == len(authd.asked)


@pytest.mark.behaviour("more.auth-ttl-expiry")
async def test_renewed_permissions_do_not_end_a_subscription(tmp_path: Path) -> None:
    """A command that is no longer allowed is refused; an existing subscription continues."""
    async with (
        running(ALL, answer(entry("^other$"))) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=b"key") as connection,
    ):
        assert OK == await connection.ask(c.sub("t", "c"))
        expire_permissions(daemon)
        connection.send(c.rdy(1))
        await daemon.post("/pub?topic=t", b"still")
        kind, data = await connection.frame()
        assert (2, b"still") == (kind, data[26:])
        assert 1 == len(authd.asked)
        await check_fatal_error(
            connection, 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""', c.pub("t", b"x")
        )


@pytest.mark.behaviour("more.auth-ttl-expiry")
async def test_a_failed_renewal_gets_auth_failed(tmp_path: Path) -> None:
    """If the authd fails at renewal, the command gets E_AUTH_FAILED, without the reason."""
    async with (
        running(ALL, (500, b"")) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=b"key") as connection,
    ):
        expire_permissions(daemon)
        await check_fatal_error(
            connection, "E_AUTH_FAILED AUTH failed", c.pub("t", b"x"), c.pub("t", b"y")
        )
        assert {} == daemon.nsqd.broker.topics


async def test_a_waiting_auth_does_not_delay_other_clients(tmp_path: Path) -> None:
    """While one client's AUTH waits, others are served; its own later commands wait, too."""
    async with (
        running(ALL) as authd,
        nsqd_with_authds(tmp_path, authd) as daemon,
        connected_with_secret(daemon, secret=b"first") as other,
        connected_with_secret(daemon) as connection,
    ):
        authd.open.clear()
        connection.send(c.auth(b"key") + c.pub("mine", b"x") + c.sub("mine", "c") + c.rdy(1))

        async def is_asked() -> bool:
            return len(authd.asked) == 2

        await until(is_asked)
        # Its later commands stay in the socket buffer of the kernel.
        assert 1 == sum(client._input is not Input.READING for client in daemon.nsqd.connections)
        assert OK == await other.ask(c.pub("t", b"x"))
        assert ["t"] == list(daemon.nsqd.broker.topics)
        authd.open.set()
        assert 0 == (await connection.frame())[0]
        assert [OK, OK] == [await connection.frame(), await connection.frame()]
        assert b"x" == (await connection.frame())[1][26:]


async def test_a_disconnect_during_auth_does_not_disturb_the_next_client(tmp_path: Path) -> None:
    """A client that disconnects while the authd is asked does not disturb the next client."""
    async with running(ALL) as authd, nsqd_with_authds(tmp_path, authd) as daemon:
        authd.open.clear()
        async with connected_with_secret(daemon) as connection:
            connection.send(c.auth(b"key"))

            async def is_asked() -> bool:
                return len(authd.asked) == 1

            await until(is_asked)
            connection.abort()
        authd.open.set()
        async with connected_with_secret(daemon, secret=b"next") as connection:
            assert OK == await connection.ask(c.pub("t", b"x"))


@pytest.mark.parametrize("address", ["ftp://host/auth", "http://", "host:port"])
def test_an_invalid_authd_address_is_refused(address: str) -> None:
    """nsqd does not start if an authd's address is invalid."""
    with pytest.raises(StartError, match="is not an address"):
        Authenticator(changed(NsqdOptions(), auth_http_addresses=(address,)))


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_an_unusable_root_ca_file_is_named(tmp_path: Path, content: str | None) -> None:
    """The error for an unusable --tls-root-ca-file, which prevents the start, names the file."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    options = changed(NsqdOptions(), auth_http_addresses=("h:1",), tls_root_ca_file=str(file))
    named = f"failed to build client TLS config - --tls-root-ca-file={file}: "
    with pytest.raises(StartError, match=re.escape(named)):
        Authenticator(options)
