"""Client options have their effects.

An option's test fails if the option is ignored. Some options need a peer that no nsqd can be, such
as a host that drops packets or an nsqlookupd that hangs; their tests run that peer themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Config, Consumer, Producer, PublishError
from sparq.client.connection import open_connection
from tests.client.authd import SECRET
from tests.client.certificates import Certificates, certificates
from tests.client.scripted import listening
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The files of a CA, a server and a client."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsqd_with_client_certificates(
    tmp_path_factory: pytest.TempPathFactory, files: Certificates
) -> Iterator[NsqdServer]:
    """An nsqd that requires client certificates and has topology-aware consumption."""
    flags = (
        *(f"--tls-cert={files.server}", f"--tls-key={files.server}"),
        *(
            f"--tls-root-ca-file={files.authority}",
            "--tls-client-auth-policy=require-verify",
            "--https-address=127.0.0.1:0",
        ),
        *("--enable-experiment=topology-aware-consumption", "--tls-required=tcp-https"),
        *("--topology-region=north", "--topology-zone=n1"),
    )
    with spawn_nsqd(tmp_path_factory.mktemp("choosy"), *flags) as server:
        yield server


def consumer_of(place: NsqdServer | Tap, topic: str, **options: Any) -> Consumer:
    """A consumer of the topic's channel "c"."""
    address = place.address if isinstance(place, Tap) else place.tcp
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, **options}
    return Consumer(topic, "c", nsqd_tcp_addresses=address, **given)


def ready_counts(nsqd: NsqdServer, topic: str) -> list[int]:
    """The RDY counts that nsqd has for the clients of the topic's channel "c"."""
    return [each["ready_count"] for each in nsqd.channel(topic, "c").get("clients", ())]


# Connecting


async def test_dial_timeout_limits_a_dropped_handshake() -> None:
    """`dial_timeout` limits the time to connect to a host that drops packets."""
    loop = asyncio.get_running_loop()
    with socket.socket() as deaf, contextlib.ExitStack() as callers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):  # more than its backlog: the next connection gets no answer
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        began = loop.time()
        with pytest.raises(TimeoutError):
            await open_connection(f"127.0.0.1:{deaf.getsockname()[1]}", Config(dial_timeout=0.1))

        assert 0.1 <= loop.time() - began < 1


async def test_write_timeout_closes_the_connection(shared_daemons: SharedDaemons) -> None:
    """`write_timeout` closes a connection whose nsqd reads nothing for that time."""
    nsqd = shared_daemons.nsqds[0]
    connection = await open_connection(nsqd.tcp, Config(write_timeout=0.2))
    for _ in range(4):
        connection.send(b"NOP\n" * (1 << 20))
        await connection.drained()
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        connection.send(b"NOP\n" * (4 << 20))
        lost = await connection.ended()
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)

    assert "nsqd has not read any data for 0.2 s" in str(lost)


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.2:0", "127.0.0.2:{port}"])
async def test_local_addr_sets_the_clients_address(
    shared_daemons: SharedDaemons, address: str
) -> None:
    """`local_addr` sets the address, and optionally the port, that nsqd sees as the client's."""
    port, nsqd = free_port(), shared_daemons.nsqds[0]
    topic = shared_daemons.make(f"local{port}")
    options = {"local_addr": address.format(port=port)}
    async with consumer_of(nsqd, topic, **options) as consumer:
        await until(lambda: consumer.connections)
        [client] = nsqd.channel(topic, "c")["clients"]
    host, _, seen = client["remote_address"].rpartition(":")

    assert host == "127.0.0.2"
    assert (seen == str(port)) is ("{port}" in address)


async def test_max_reconnect_delay_limits_the_delay() -> None:
    """`max_reconnect_delay` limits the delay between two connection attempts."""
    attempts: dict[float, int] = {}

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        identity = await reader.readuntil(b"}")
        attempts[delay_in(identity)] = attempts.get(delay_in(identity), 0) + 1
        writer.transport.abort()

    def delay_in(identity: bytes) -> float:
        found = re.search(rb'"client_id": ?"([\d.]+)"', identity)
        assert found
        return float(found[1])

    async with listening(hang_up) as address, contextlib.AsyncExitStack() as stack:
        for delay in (0.02, 60.0):
            options = {"max_reconnect_delay": delay, "client_id": str(delay), "stop_timeout": 0.0}
            await stack.enter_async_context(Producer(address, **options))
        await until(lambda: attempts.get(0.02, 0) >= 20)

    assert attempts[60.0] < 10


async def test_deflate_level_is_negotiated(shared_daemons: SharedDaemons) -> None:
    """The client requests `deflate_level`; nsqd may lower it."""
    for asked, agreed in ((1, 1), (9, 6)):
        config = Config(deflate=True, deflate_level=asked)
        connection = await open_connection(shared_daemons.nsqds[0].tcp, config)
        await connection.close()
        assert connection.facts["deflate_level"] == agreed


async def test_tls_v1_refuses_an_nsqd_without_tls(shared_daemons: SharedDaemons) -> None:
    """With `tls_v1`, an nsqd without TLS is refused: only IDENTIFY is sent unencrypted."""
    async with (
        tapped(shared_daemons.nsqds[0]) as [tap],
        Producer(tap.address, tls_v1=True, stop_timeout=0.0) as producer,
    ):
        with pytest.raises(PublishError):
            await producer.publish("clear", b"secret", timeout_seconds=0.2)

        assert "does not offer TLS" in producer.errors[tap.address]
        assert producer.connections == []
        assert {b"IDENTIFY"} == set(tap.script)


async def test_tls_config_is_used_unchanged(
    nsqd_with_client_certificates: NsqdServer, files: Certificates
) -> None:
    """`tls_config` is used unchanged, with its trusted CAs and its certificate."""
    good = ssl.create_default_context(cafile=files.authority)
    good.load_cert_chain(files.client)
    async with Producer(nsqd_with_client_certificates.tcp, tls_config=good) as producer:
        assert (await producer.publish("context", b"x")).nsqd == nsqd_with_client_certificates.tcp
    ignorant = Config(tls_config=ssl.create_default_context(), stop_timeout=0.0)
    async with Producer(nsqd_with_client_certificates.tcp, config=ignorant) as producer:
        await until(lambda: producer.errors)
        assert "TLS" in producer.errors[nsqd_with_client_certificates.tcp]


async def test_skip_verify_accepts_an_untrusted_certificate(
    nsqd_with_client_certificates: NsqdServer, files: Certificates
) -> None:
    """`tls_insecure_skip_verify` accepts a certificate that no trusted CA has signed."""
    known = {"tls_cert": str(files.client), "stop_timeout": 0.0}
    async with Producer(
        nsqd_with_client_certificates.tcp, tls_insecure_skip_verify=True, **known
    ) as producer:
        assert (await producer.publish("trusting", b"x")).nsqd == nsqd_with_client_certificates.tcp
    async with Producer(nsqd_with_client_certificates.tcp, **known) as producer:
        await until(lambda: producer.errors)
        assert re.search(
            "self-signed|local issuer", producer.errors[nsqd_with_client_certificates.tcp]
        )


async def test_tls_key_is_the_key_of_tls_cert(
    nsqd_with_client_certificates: NsqdServer, files: Certificates, tmp_path: Path
) -> None:
    """`tls_key` is the key of `tls_cert`; without it, a `tls_cert` without a key is an error."""
    text = files.client.read_text()
    parts = re.findall(r"-----BEGIN.*?-----END[^\n]*\n", text, re.S)
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    key.write_text("".join(part for part in parts if "KEY" in part))
    cert.write_text("".join(part for part in parts if "KEY" not in part))
    options = {"tls_root_ca_file": str(files.authority), "tls_cert": str(cert)}
    with pytest.raises(ValueError, match="tls_cert"):
        Config(**options)
    async with Producer(nsqd_with_client_certificates.tcp, **options, tls_key=str(key)) as producer:
        assert (await producer.publish("key", b"x")).nsqd == nsqd_with_client_certificates.tcp


# nsqlookupds


async def test_lookupd_poll_interval_sets_the_rate_of_polls(shared_daemons: SharedDaemons) -> None:
    """`lookupd_poll_interval`: a consumer that polls every 0.1 s finds a new nsqd first."""
    topic, places = "asked.often", {"lookupd_http_addresses": shared_daemons.lookupd.http}
    first, second = shared_daemons.nsqds
    first.post(f"/topic/create?topic={topic}")
    await until(lambda: shared_daemons.lookupd.request("GET", f"/lookup?topic={topic}")[0] == 200)
    async with (
        Consumer(topic, "c", **places, lookupd_poll_interval=300.0) as seldom,
        Consumer(topic, "c", **places, lookupd_poll_interval=0.1) as often,
    ):
        await until(lambda: seldom.connections == often.connections == [first.tcp])
        second.post(f"/topic/create?topic={topic}")
        await until(lambda: len(often.connections) == 2)

        assert seldom.connections == [first.tcp]


async def test_lookupd_poll_jitter_limits_the_random_delay() -> None:
    """`lookupd_poll_jitter`: the second poll happens within this fraction of the interval."""
    asked = {b"none": 0, b"full": 0}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readuntil(b"\r\n\r\n"):
            asked[line.split(b"topic=")[1][:4]] += 1
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"producers":[]}')

    async with listening(answer) as address:
        options: dict[str, Any] = {"lookupd_http_addresses": address, "lookupd_poll_interval": 300}
        async with (
            Consumer("full", "c", **options, lookupd_poll_jitter=1.0),
            Consumer("none", "c", **options, lookupd_poll_jitter=0.0),
        ):
            await until(lambda: asked == {b"none": 2, b"full": 1})


async def test_lookupd_poll_timeout_limits_a_hanging_nsqlookupd(
    shared_daemons: SharedDaemons,
) -> None:
    """`lookupd_poll_timeout` limits the wait for an nsqlookupd; the others' nsqds are connected."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    topic = shared_daemons.make("hanging")
    async with listening(say_nothing) as deaf:
        places = [shared_daemons.lookupd.http, deaf]
        options = {"lookupd_poll_timeout": 0.1}
        async with Consumer(topic, "c", lookupd_http_addresses=places, **options) as consumer:
            await until(lambda: len(consumer.connections) == 2)
            await until(lambda: any(deaf in place for place in consumer.errors))


@pytest.mark.parametrize("sent", [True, False])
async def test_lookupd_authorization_sends_the_secret(sent: bool) -> None:
    """Only with `lookupd_authorization`, nsqlookupds get `auth_secret` as a bearer token."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    options = {"auth_secret": SECRET, "auth_without_tls": True, "lookupd_authorization": sent}
    async with (
        listening(answer) as address,
        Consumer("t", "c", lookupd_http_addresses=address, **options),
    ):
        await until(lambda: heads)

    assert (f"Authorization: Bearer {SECRET}".encode() in heads[0]) is sent


# Consuming


async def test_consumers_in_the_same_zone_are_filled_first(
    nsqd_with_client_certificates: NsqdServer, files: Certificates
) -> None:
    """With `topology_region` and `topology_zone`, consumers in nsqd's zone are filled first."""
    options = {"tls_root_ca_file": str(files.authority), "tls_cert": str(files.client)}
    places = {"near": ("north", "n1"), "nearby": ("north", "n2"), "far": ("south", "s1")}
    async with contextlib.AsyncExitStack() as stack:
        consumers = {
            name: await stack.enter_async_context(
                consumer_of(
                    nsqd_with_client_certificates,
                    "near",
                    topology_region=region,
                    topology_zone=zone,
                    **options,
                )
            )
            for name, (region, zone) in places.items()
        }
        await until(lambda: [10] * 3 == ready_counts(nsqd_with_client_certificates, "near"))
        nsqd_with_client_certificates.post(
            "/mpub?topic=near", b"\n".join(b"%d" % number for number in range(13))
        )
        await until(lambda: sum(each.counters.received for each in consumers.values()) == 13)
        received = {name: each.counters.received for name, each in consumers.items()}

    assert received == {"near": 10, "nearby": 3, "far": 0}


@pytest.mark.parametrize("strategy", ["exponential", "full_jitter"])
async def test_backoff_strategies_wait_differently(
    shared_daemons: SharedDaemons, strategy: str
) -> None:
    """`backoff_strategy`: exponential waits the whole block, full jitter a random part of it."""
    topic, nsqd = shared_daemons.make(strategy), shared_daemons.nsqds[0]
    options = {"backoff_strategy": strategy, "backoff_multiplier": 0.2}
    waits: list[float] = []
    async with consumer_of(nsqd, topic, **options) as consumer:
        while len(waits) < 2 or (strategy == "full_jitter" and min(waits) > 0.35):
            nsqd.post(f"/pub?topic={topic}", b"x")
            (await anext(consumer)).requeue(0)
            waits.append(await seconds_to_next(consumer))
            await until(lambda: consumer.backoff_level == 0)

    assert (1.5 > min(waits) >= 0.39) is (strategy == "exponential")


async def seconds_to_next(consumer: Consumer) -> float:
    """Finish the next message; returns the seconds until it arrived."""
    clock = asyncio.get_running_loop().time
    began = clock()
    (await anext(consumer)).finish()
    return clock() - began


@pytest.mark.parametrize("busy", [True, False])
async def test_rdy_1_moves_to_the_other_connection(
    shared_daemons: SharedDaemons, busy: bool
) -> None:
    """With `max_in_flight` 1 and two connections, RDY 1 moves to the other connection in time.

    A connection with messages keeps it for `low_rdy_timeout`, an idle one for
    `low_rdy_idle_timeout`; the client checks every `rdy_redistribute_interval`.
    """
    topic = shared_daemons.make(f"seats.{busy}")
    addresses = [nsqd.tcp for nsqd in shared_daemons.nsqds]
    options: dict[str, Any] = {
        "max_in_flight": 1,
        "low_rdy_timeout": 1.0 if busy else 300.0,
        "low_rdy_idle_timeout": 300.0 if busy else 1.0,
        "rdy_redistribute_interval": 0.02,
    }

    def ready(nsqd: NsqdServer) -> int:
        return sum(ready_counts(nsqd, topic))

    async with Consumer(topic, "c", nsqd_tcp_addresses=addresses, **options) as consumer:
        await until(lambda: len(consumer.connections) == 2)
        await until(lambda: sum(map(ready, shared_daemons.nsqds)) == 1)
        seated, waiting = sorted(shared_daemons.nsqds, key=ready, reverse=True)
        waiting.post(f"/pub?topic={topic}", b"x")
        if busy:
            seated.post(f"/mpub?topic={topic}", b"\n".join([b"y"] * 1000))
        async with asyncio.timeout(4):
            async for message in consumer:
                message.finish()
                if message.body == b"x":
                    break
                await asyncio.sleep(0.01)  # 1,000 messages take longer than `low_rdy_timeout`
