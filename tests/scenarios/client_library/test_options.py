"""Client options have their effects.

An option's test fails if the option is ignored. Some options need a peer that no nsqd can be, such
as a host that drops packets or an nsqlookupd that hangs; their tests run that peer themselves.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from sparq.client import Config, Consumer, Producer
from tests.client.certificates import Certificates, certificates
from tests.client.scripted import listening
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until


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


# Connecting


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


# nsqlookupds


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


# Consuming
