"""Upgrades of a connection to TLS and compression, and data that arrives too early."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import fin, identify, pub, rdy, sub
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.certificates import Certificates
from tests.support.v2_client import AsyncV2Client, Closed
from tests.support.v2_stream import V2Stream

LAYERS = [(tls, kind) for tls in (False, True) for kind in ("", "deflate", "snappy")]
UPGRADES = [layers for layers in LAYERS if layers != (False, "")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["tcp", "unix"])
async def daemon(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates
) -> AsyncIterator[Daemon]:
    """An nsqd with a certificate, on a TCP port or a unix socket."""
    address = {"tcp_address": str(tmp_path / "s")} if request.param == "unix" else {}
    found = await start(tmp_path, **certificates.options(**address))
    yield found
    await stop(found)


async def upgraded(
    client: AsyncV2Client, certificates: Certificates, layers: tuple[bool, str], **asked: Any
) -> dict[str, Any]:
    tls, compression = layers
    return await client.upgrade(certificates.client() if tls else None, compression, **asked)


@pytest.mark.behaviour("TestTLS", "unix.TestTLS", "TestDeflate", "unix.TestDeflate")
@pytest.mark.behaviour("TestSnappy", "unix.TestSnappy", "TestTLSDeflate", "unix.TestTLSDeflate")
@pytest.mark.behaviour("TestTLSSnappy", "unix.TestTLSSnappy")
@pytest.mark.parametrize("layers", LAYERS)
async def test_commands_and_messages_pass_through_layers(
    daemon: Daemon, certificates: Certificates, layers: tuple[bool, str]
) -> None:
    """Through every combination of layers, large and small messages arrive unchanged."""
    bodies = [b"x" * 128_000, b"y", bytes(range(256)) * 500]
    async with connected(daemon) as client:
        reply = await upgraded(client, certificates, layers, deflate_level=2)
        for body in bodies:
            client.send(pub("t", body))
            assert b"OK" == await client.response()
        client.send(sub("t", "c") + rdy(10))
        assert b"OK" == await client.response()
        found = []
        for _ in bodies:
            kind, data = await client.frame()
            _, attempts, message_id, body = decode_message(data)
            found.append(bytes(body))
            assert (2, 1) == (kind, attempts)
            client.send(fin(bytes(message_id)))
        assert bodies == found
        (stats,) = (await daemon.channel("t", "c"))["clients"]

    assert layers == (reply["tls_v1"], "deflate" * reply["deflate"] + "snappy" * reply["snappy"])
    assert (2 if reply["deflate"] else 6) == reply["deflate_level"]
    agreed = {key: reply[key] for key in ("deflate", "snappy")}
    assert agreed == {key: stats[key] for key in agreed}
    assert layers[0] is stats["tls"]


@pytest.mark.parametrize("layers", UPGRADES)
async def test_a_layer_is_not_added_twice(
    daemon: Daemon, certificates: Certificates, layers: tuple[bool, str]
) -> None:
    """TLS inside TLS or compression gets E_IDENTIFY_FAILED; an IDENTIFY without TLS does not."""
    async with connected(daemon) as client:
        await upgraded(client, certificates, layers)
        assert (await client.identify())["tls_v1"] is False
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        client.send(identify(body))

        assert b"E_IDENTIFY_FAILED IDENTIFY failed already upgraded" == await client.error()


def pipelined(**asked: Any) -> bytes:
    return identify(json.dumps({"feature_negotiation": True, **asked}).encode())


@pytest.mark.behaviour("more.pipelining-after-identify")
@pytest.mark.parametrize("cut", [False, True])
async def test_plain_commands_after_identify_are_never_executed(daemon: Daemon, cut: bool) -> None:
    """Plain commands after the IDENTIFY fail the TLS handshake: no STARTTLS injection."""
    async with connected(daemon) as client:
        client.send(pipelined(tls_v1=True) + (b"" if cut else pub("injected", b"x")))
        if cut:
            await client.response()
            client.send(pub("injected", b"x"))
        with pytest.raises((Closed, struct.error)):
            while True:
                await client.exactly(1)

    assert [] == (await daemon.stats())["topics"]


@pytest.mark.parametrize("kind", ["deflate", "snappy"])
async def test_plain_commands_after_compression_end_the_connection(
    daemon: Daemon, kind: str
) -> None:
    """Plain commands after an upgrade to compression are invalid data, and end the connection."""
    async with connected(daemon) as client:
        client.send(pipelined(**{kind: True}) + pub("injected", b"x") * 50)
        with pytest.raises(Closed):
            while True:
                await client.exactly(1)

    assert [] == (await daemon.stats())["topics"]


async def test_a_client_hello_may_follow_identify_at_once(
    daemon: Daemon, certificates: Certificates
) -> None:
    """A TLS hello sent right after the IDENTIFY, before the reply, is used for the handshake."""
    async with connected(daemon) as client:
        secure = V2Stream()
        client.writer.write(pipelined(tls_v1=True) + secure.begin_tls(certificates.client()))
        assert json.loads(await client.response())["tls_v1"]
        early, client.stream = bytes(client.stream.plain), secure
        client.writer.write(secure.shake_hands(early))
        while secure.is_shaking_hands:
            client.writer.write(secure.shake_hands(await client.read()))
        client.send(pub("t", b"x"))

        assert [b"OK", b"OK"] == [await client.response(), await client.response()]


async def test_earlier_answers_come_before_the_upgrade(daemon: Daemon) -> None:
    """A publish before the IDENTIFY is answered uncompressed, before the IDENTIFY's reply."""
    async with connected(daemon) as client:
        client.send(pub("t", b"x") + pipelined(deflate=True))

        assert b"OK" == await client.response()
        assert json.loads(await client.response())["deflate"]
        client.stream.begin_compression("deflate")
        assert b"OK" == await client.response()


@pytest.mark.parametrize("layers", UPGRADES)
async def test_a_fatal_error_is_read_through_the_layers(
    daemon: Daemon, certificates: Certificates, layers: tuple[bool, str]
) -> None:
    """A fatal error, and TLS's close_notify, are sent through the layers."""
    async with connected(daemon) as client:
        await upgraded(client, certificates, layers)
        client.send(pub("t", b"x") + b"HUBBA\n" + pub("t", b"never"))

        assert b"OK" == await client.response()
        assert b"E_INVALID invalid command HUBBA" == await client.error()
        assert layers[0] is client.stream.was_told_goodbye
    assert 1 == (await daemon.topic("t"))["message_count"]


@pytest.mark.parametrize("layers", UPGRADES)
async def test_a_client_that_does_not_read_stops_its_commands(
    daemon: Daemon, certificates: Certificates, layers: tuple[bool, str]
) -> None:
    """Buffered output is bounded through layers, and every message arrives once it is read."""
    count = 40
    size = 500_000
    async with connected(daemon) as publisher:
        for at in range(count):
            publisher.send(pub("t", at.to_bytes(4) + bytes(size)))
            assert b"OK" == await publisher.response()
    async with connected(daemon) as client:
        await upgraded(client, certificates, layers)
        client.send(sub("t", "c") + rdy(count))
        assert b"OK" == await client.response()
        bodies = []
        for _ in range(count):
            kind, data = await client.frame()
            assert 2 == kind
            bodies.append(int.from_bytes(bytes(decode_message(data)[3])[:4]))
            client.send(fin(data[10:26]))
            await asyncio.sleep(0)  # so that the FIN is written alone

        assert list(range(count)) == bodies
