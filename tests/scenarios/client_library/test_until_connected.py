"""A new connection is logged, and `until_connected` waits for it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import sparq
from sparq.client import Consumer, Producer
from sparq.client.errors import ClosedError, ConnectionLostError
from tests.support.servers import free_port, spawn_nsqd
from tests.support.waiting import until


async def test_each_connection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each connection is logged at INFO with address and version.

    A later one is logged as "connected again".
    """
    caplog.set_level(logging.INFO, "sparq.client")
    with spawn_nsqd(tmp_path) as nsqd:

        def lines() -> list[str]:
            return [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]

        async with Producer(nsqd.tcp) as producer:
            await producer.until_connected()
            assert [f"nsqd {nsqd.tcp}: connected (1.3.0)"] == lines()

            await asyncio.to_thread(nsqd.restart)
            await until(lambda: len(lines()) == 2)

        assert f"nsqd {nsqd.tcp}: connected again (1.3.0)" == lines()[1]
        assert nsqd.tcp == caplog.records[-1].__dict__["nsqd"]


async def test_until_connected_raises_if_a_first_attempt_fails(tmp_path: Path) -> None:
    """Without a timeout, `until_connected` raises if a first attempt fails, and names the nsqd."""
    nobody = f"127.0.0.1:{free_port()}"
    with spawn_nsqd(tmp_path) as nsqd:
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp, nobody]) as consumer:
            with pytest.raises(ConnectionLostError) as lost:
                await consumer.until_connected()

        assert f"no connection to nsqd {nobody}: connection refused" == str(lost.value)
    with pytest.raises(ClosedError):
        await Consumer("t", "c", nsqd_tcp_addresses=nobody).until_connected()


def test_the_blocking_until_connected_raises_too(tmp_path: Path) -> None:
    """The blocking API's `until_connected` waits and raises the same way."""
    with spawn_nsqd(tmp_path) as nsqd, sparq.connect(nsqd.tcp) as session:
        session.producer().until_connected(5.0)
        nsqd.kill9()
        with pytest.raises(ConnectionLostError, match=r"within 0\.2 s: connection refused"):
            session.consumer("t", "c").until_connected(0.2)


@pytest.mark.parametrize("given", ["'127.0.0.1:1'", "lookupd_http_addresses='127.0.0.1:1'"])
def test_aiohttp_is_imported_only_for_nsqlookupds(given: str) -> None:
    """aiohttp is imported only for nsqlookupds, numpy never.

    So a client of nsqds alone starts 0.25 s faster.
    """
    program = (
        "import sys; from sparq.client import Consumer, Producer; "
        f"Producer({given}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    loaded = set(done.stdout.decode().split())
    assert {"sparq.client.producer", "asyncio"} <= loaded
    assert ("lookupd" in given) == ("aiohttp" in loaded)
    assert "numpy" not in loaded
