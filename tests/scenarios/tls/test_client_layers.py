"""TLS, compression and AUTH with real nsqds, for consumer, producer and range reader."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client import AuthRequiredError, Config, Consumer, Producer, RemoteError
from sparq.client.blocking.connection import BlockingConnection
from sparq.client.connection import open_connection
from sparq.client.range_reader import RangeReader
from sparq.wire.layer_options import LayerOptions
from tests.client.authd import READER, SECRET, Authd, running_authd
from tests.client.certificates import Certificates, certificates
from tests.client.nsqd_on_any_address import NsqdOnAnyAddress, tls_flags
from tests.support.own_topic import own_topic
from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.support.waiting import until

WAIT_SECONDS = 60.0
KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "tls+snappy": {"tls_v1": True, "snappy": True},
    "tls+deflate": {"tls_v1": True, "deflate": True},
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress log lines about expected connection losses."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def authd() -> Iterator[Authd]:
    """An auth server that knows two secrets."""
    with running_authd() as running:
        yield running


@pytest.fixture(scope="module")
def open_nsqd(
    tmp_path_factory: pytest.TempPathFactory, files: Certificates
) -> Iterator[NsqdServer]:
    """An nsqd that offers all layers and requires none."""
    with spawn_nsqd(tmp_path_factory.mktemp("open"), *tls_flags(files.server)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded_nsqd(
    tmp_path_factory: pytest.TempPathFactory, files: Certificates, authd: Authd
) -> Iterator[NsqdServer]:
    """An nsqd that requires AUTH."""
    flags = (*tls_flags(files.server), f"--auth-http-address={authd.address}")
    with spawn_nsqd(tmp_path_factory.mktemp("guarded"), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def nsqds(open_nsqd: NsqdServer, guarded_nsqd: NsqdServer) -> dict[bool, NsqdServer]:
    """Both nsqds, by whether they require AUTH."""
    return {False: open_nsqd, True: guarded_nsqd}


def options_of(files: Certificates, kind: str, secret: str = "") -> dict[str, Any]:
    """Options for these layers, which trust the tests' CA."""
    options: dict[str, Any] = dict(KINDS[kind], auth_secret=secret)
    options["auth_without_tls"] = "tls_v1" not in options
    if "tls_v1" in options:
        options["tls_root_ca_file"] = str(files.authority)
    return options


async def refusal_of(address: str, **options: Any) -> str:
    """Return the reason why a producer cannot connect."""
    async with Producer(address, stop_timeout=0.0, **options) as producer:
        await until(lambda: producer.errors, WAIT_SECONDS)
        assert not producer.connections
        return producer.errors[address]


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "auth"])
@pytest.mark.parametrize("kind", KINDS)
async def test_publish_and_consume(
    request: pytest.FixtureRequest,
    files: Certificates,
    nsqds: dict[bool, NsqdServer],
    kind: str,
    guarded: bool,
) -> None:
    """Small and 1 MiB messages, compressible or not, arrive unchanged; /stats shows the layers."""
    nsqd, topic = nsqds[guarded], own_topic(request)
    options = options_of(files, kind, SECRET if guarded else "")
    bodies = [b"small", os.urandom(1 << 20), bytes(1 << 20), *(b"%d" % n for n in range(500))]
    options |= {"publish_timeout": WAIT_SECONDS}
    consumer = Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, max_in_flight=300, **options)
    async with consumer, Producer(nsqd.tcp, **options) as producer:
        await asyncio.gather(*(producer.publish(topic, body) for body in bodies[:3]))
        await producer.multi_publish(topic, bodies[3:])
        seen = []
        async with asyncio.timeout(WAIT_SECONDS):
            async for message in consumer:
                seen.append(message.body)
                await message.finish()
                if len(seen) == len(bodies):
                    break
        await until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0, WAIT_SECONDS)
        (client,) = nsqd.channel(topic, "c")["clients"]

    assert sorted(seen) == sorted(bodies)
    asked = {"tls": "tls" in kind, "snappy": "snappy" in kind, "deflate": "deflate" in kind}
    assert {name: bool(client[name]) for name in asked} == asked
    assert bool(client.get("authed")) is guarded


# AUTH


async def test_invalid_secrets_are_reported(
    request: pytest.FixtureRequest, files: Certificates, guarded_nsqd: NsqdServer, authd: Authd
) -> None:
    """A missing or wrong secret, or one without permission, is reported without showing it."""
    topic, tcp = own_topic(request), guarded_nsqd.tcp
    assert "set the option auth_secret" in await refusal_of(tcp)
    assert "set the option tls_v1, or auth_without_tls" in await refusal_of(tcp, auth_secret=SECRET)
    refused = await refusal_of(tcp, auth_secret="guess", auth_without_tls=True)
    assert "E_AUTH_FAILED AUTH failed" in refused
    assert "guess" not in refused
    with pytest.raises(AuthRequiredError, match="auth_secret"):
        BlockingConnection(tcp)
    with pytest.raises(RemoteError, match="E_AUTH_FAILED") as failed:
        BlockingConnection(tcp, layers=LayerOptions(auth_secret="guess", auth_without_tls=True))
    assert "guess" not in repr(failed.value)

    reading: dict[str, Any] = {"auth_secret": READER, "auth_without_tls": True}
    async with Producer(tcp, **reading) as producer:
        with pytest.raises(RemoteError, match="E_UNAUTHORIZED AUTH failed for PUB"):
            await producer.publish(topic, b"1")
    async with Consumer(topic, "c", nsqd_tcp_addresses=tcp, **reading) as consumer:
        await until(lambda: consumer.connections, WAIT_SECONDS)
    asked = await open_connection(tcp, Config(**options_of(files, "tls", SECRET)))
    assert asked.authorization["identity"] == "somebody"
    assert authd.asked[-1]["tls"] == "true"
    await asked.close()


async def test_a_publish_waits_for_an_expired_permission(tmp_path: Path) -> None:
    """If the auth server fails when a permission expires, a publish waits, and is not lost."""
    with (
        running_authd() as authd,
        spawn_nsqd(tmp_path, f"--auth-http-address={authd.address}") as nsqd,
    ):
        authd.ttl = 1
        options: dict[str, Any] = {"auth_secret": SECRET, "auth_without_tls": True}
        options["max_reconnect_delay"] = 0.1
        async with Producer(nsqd.tcp, publish_timeout=WAIT_SECONDS, **options) as producer:
            await producer.publish("t", b"1")
            authd.in_order = False
            await asyncio.sleep(1.1)  # the permission expires after a second, without notice
            late = asyncio.create_task(producer.publish("t", b"2"))
            await until(lambda: "E_AUTH_FAILED" in str(producer.errors), WAIT_SECONDS)
            assert not late.done()
            authd.in_order = True
            assert (await late).resent == 0
        stats = nsqd.get_json("/stats?format=json&topic=t")
        assert stats["topics"][0]["message_count"] == 2


# Back pressure, addresses, ranges


def has_ipv6() -> bool:
    """Whether ::1 can be bound."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("place", ["{folder}/nsqd.sock", "[::1]:{port}"], ids=["unix", "IPv6"])
@pytest.mark.parametrize("kind", ["plain", "tls+snappy"])
async def test_unix_sockets_and_ipv6(
    tmp_path: Path, files: Certificates, kind: str, place: str
) -> None:
    """Both clients accept a unix socket's path and a bracketed IPv6 address."""
    if "::1" in place and not has_ipv6():
        pytest.skip("needs IPv6")
    options, layers = options_of(files, kind), LayerOptions(**options_of(files, kind))
    address = place.format(folder=tmp_path, port=free_port())
    nsqd = NsqdOnAnyAddress(
        "sparq.nsqd", tmp_path, (f"--data-path={tmp_path}", *tls_flags(files.server))
    )
    nsqd.tcp = address
    with nsqd:
        await asyncio.to_thread(nsqd.start)
        async with Producer(address, **options) as producer:
            receipt = await producer.publish("t", b"1")
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], **options) as consumer:
            message = await anext(consumer)
            await message.finish()
        reader = RangeReader(address, layers=layers)
        ends = await asyncio.to_thread(reader.ends, "t")
        reader.close()

    assert (receipt.nsqd, message.nsqd, message.body) == (address, address, b"1")
    assert ends.end_ordinal == 1
