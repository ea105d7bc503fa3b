"""D-5: Spark shows no secret, its schema is fixed, nsqd's data bounded. D-4: bodies are bytes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import pickle
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparq.client import Consumer
from sparq.client.blocking.connection import FRAME_BYTES_MAX, BlockingConnection
from sparq.protocol import commands
from sparq.wire.layer_options import LayerOptions
from tests.client.authd import SECRET, running_authd
from tests.scenarios.security.test_forwarding import HOSTILE
from tests.support.run_program import run_program
from tests.support.servers import NsqdServer, spawn_nsqd

ROOT = Path(__file__).parents[3]
SECONDS = 600
PATIENT = ("--http-client-connect-timeout=60s", "--http-client-request-timeout=60s")
"""The auth server shares a busy machine with a JVM that is starting."""

MIB = 1 << 20
has_spark = importlib.util.find_spec("pyspark") is not None


def publish(server: NsqdServer, topic: str, bodies: list[bytes]) -> None:
    """Publish with the secret to a new topic with a channel."""
    server.post(f"/topic/create?topic={topic}")
    server.post(f"/channel/create?topic={topic}&channel=copy")
    connection = BlockingConnection(
        server.tcp, layers=LayerOptions(auth_secret=SECRET, auth_without_tls=True)
    )
    assert connection.ask(commands.mpub(topic, bodies)) == b"OK"
    connection.close()


async def consume(server: NsqdServer, topic: str, count: int) -> list[bytes]:
    """Consume `count` messages of the topic with the secret."""
    consumer = Consumer(
        topic,
        "copy",
        nsqd_tcp_addresses=server.tcp,
        auth_secret=SECRET,
        auth_without_tls=True,
        max_in_flight=count,
    )
    bodies = []
    async with consumer:
        async for message in consumer:
            bodies.append(message.body)
            await message.finish()
            if len(bodies) == count:
                break
    return bodies


class Application(NamedTuple):
    """A Spark application that has ended.

    Attributes:
        told: its lines on standard output.
        outputs: content of every file that it created, and its output streams.
        marker: a file that exists if a body was unpickled.
        bodies: the bodies that it had to copy.
        copied: the bodies that it published.
    """

    told: list[str]
    outputs: dict[str, bytes]
    marker: Path
    bodies: list[bytes]
    copied: list[bytes]


class MaliciousPickle:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return open, (str(self.marker), "w")


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Application:
    """Run Spark on messages of an nsqd that requires the secret, some of them malicious pickles."""
    if not has_spark:
        pytest.skip("needs pyspark")
    base = tmp_path_factory.mktemp("secrets")
    folder, marker = base / "spark", base / "harm"
    folder.mkdir()
    bodies = [*HOSTILE, *(b"%d" % number for number in range(90 - len(HOSTILE)))]
    bodies += [pickle.dumps(MaliciousPickle(marker))] * 10
    with (
        running_authd() as authd,
        spawn_nsqd(base, f"--auth-http-address={authd.address}", *PATIENT) as server,
    ):
        publish(server, "clicks", bodies)
        publish(server, "copied", [b"first"])
        options = {
            "topic": "clicks",
            "nsqd_tcp_addresses": server.tcp,
            "auth_secret": SECRET,
            "auth_without_tls": "true",
        }
        options["nsqdTimeoutMs"] = "120000"
        ran = run_program(
            [sys.executable, "-m", "tests.scenarios.security.spark_run"],
            given=json.dumps({"options": options, "folder": str(folder)}),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            seconds=SECONDS,
        )
        assert 0 == ran.returncode, ran.stderr[-4000:]
        copied = asyncio.run(consume(server, "copied", 1 + len(bodies)))
    outputs = {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    outputs |= {"stdout": ran.stdout.encode(), "stderr": ran.stderr.encode()}
    return Application(ran.stdout.splitlines(), outputs, marker, [b"first", *bodies], copied)


@pytest.mark.timeout(SECONDS + 60)
def test_spark_shows_no_secret(application: Application) -> None:
    """Spark's event log, UI, plans, progress, errors, logs and checkpoint contain no secret."""
    told, outputs = application.told, application.outputs
    assert "done" == told[-1]
    assert 2 == sum(line.startswith("failed ") for line in told)
    assert any("events" in name and len(data) > 10_000 for name, data in outputs.items())
    assert any("page-" in name and b"nsq" in data for name, data in outputs.items())
    assert [] == [name for name, data in outputs.items() if SECRET.encode() in data]


@pytest.mark.timeout(SECONDS + 60)
def test_no_body_is_unpickled(application: Application) -> None:
    """No message body is unpickled, neither on the driver nor on a worker."""
    assert any(line.startswith("rows 100 struct<") for line in application.told)
    assert not application.marker.exists()
    pickle.loads(pickle.dumps(MaliciousPickle(application.marker))).close()
    assert application.marker.exists()


@pytest.mark.timeout(SECONDS + 60)
def test_spark_publishes_bodies_unchanged(application: Application) -> None:
    """The sink publishes each body exactly as the source has read it."""
    assert sorted(application.bodies) == sorted(application.copied)


@pytest.mark.skipif(not has_spark, reason="needs pyspark")
@pytest.mark.parametrize(
    ("column", "kind"), [("body", "string"), ("topic", "integer"), ("extra", "string")]
)
def test_the_schema_is_fixed(column: str, kind: str) -> None:
    """The schema may have fewer columns, but no other names or types."""
    from pyspark.sql.types import StructType

    from sparq.spark.data_source import COLUMNS, NsqDataSource
    from sparq.spark.options import OptionError

    def schema(*columns: tuple[str, str]) -> Any:
        fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns]
        return StructType.fromJson({"type": "struct", "fields": fields})

    source = NsqDataSource({"topic": "t", "nsqd_tcp_addresses": "127.0.0.1:1"})
    with pytest.raises(OptionError, match="the schema may only have these columns"):
        source.reader(schema(("body", "binary"), (column, kind)))
    source.reader(schema(("body", "binary")))
    assert list(COLUMNS) == [part.split()[0].strip("`") for part in source.schema().split(", ")]


@contextmanager
def hostile(*answers: bytes) -> Iterator[str]:
    """Run a fake nsqd that sends these answers; yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            for answer in answers:
                connection.recv(1 << 16)
                connection.sendall(answer)
            ended.wait(60)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        listening.close()


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, (1 << 31) - 1, -1, 0, 3])
def test_the_size_of_an_nsqds_frames_is_limited(size: int) -> None:
    """An invalid or too large frame size is refused before memory is allocated for it."""
    granted = json.dumps({"max_rdy_count": 1, "sparq_range": 1}).encode()
    hello = struct.pack(">ii", len(granted) + 4, 0) + granted
    before = peak_bytes()
    with hostile(hello, struct.pack(">ii", size, 3) + b"x" * 1000) as address:
        connection = BlockingConnection(address)
        with pytest.raises(Exception, match=f"a frame of {size} bytes"):
            connection.ask(commands.ends("t"))
        connection.close()
    assert peak_bytes() - before < 16 * MIB
