"""Spark's source and sink over TLS, compression and AUTH, with a real session and a real nsqd."""

import contextlib
import io
import json
import os
from collections import Counter

import pytest

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol import commands
from sparq.wire.layer_options import LayerOptions
from tests.client.authd import SECRET, running_authd
from tests.client.certificates import certificates
from tests.support.own_topic import own_topic
from tests.support.servers import spawn_nsqd
from tests.support.spark_session import IN_A_SESSION

pytestmark = IN_A_SESSION

WAIT_SECONDS = 150


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory, files):
    """An nsqd that offers TLS and requires AUTH."""
    flags = [f"--tls-cert={files.server}", f"--tls-key={files.server}"]
    with (
        running_authd() as authd,
        spawn_nsqd(
            tmp_path_factory.mktemp("nsqd"),
            *flags,
            "--https-address=127.0.0.1:0",
            f"--auth-http-address={authd.address}",
        ) as running,
    ):
        yield running


@pytest.fixture
def options(request, files, nsqd):
    """Options for a topic of the test, in mixed case, since Spark ignores the case of options."""
    return {
        "topic": own_topic(request),
        "nsqd_tcp_addresses": nsqd.tcp,
        "TLS_v1": "true",
        "tls_root_ca_file": str(files.authority),
        "SNAPPY": "True",
        "Auth_Secret": SECRET,
    }


def publish(nsqd, topic: str, bodies: list[bytes]) -> None:
    """Publish with MPUBs of 100 messages, to a topic with a channel."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=any")
    connection = BlockingConnection(
        nsqd.tcp, layers=LayerOptions(auth_secret=SECRET, auth_without_tls=True)
    )
    for at in range(0, len(bodies), 100):
        assert connection.ask(commands.mpub(topic, bodies[at : at + 100])) == b"OK"
    connection.close()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_batch_is_read(spark, nsqd, options):
    """Several tasks read megabytes over TLS, snappy and AUTH, and no plan contains the secret."""
    bodies = numbered(1000) + [os.urandom(4000) + bytes(4000) for _ in range(1000)]
    publish(nsqd, options["topic"], bodies)
    frame = spark.read.format("nsq").options(minPartitions="3", **options).load()
    rows = frame.collect()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain(extended=True)
        frame.explain(mode="formatted")

    assert Counter(bodies) == Counter(bytes(row.body) for row in rows)
    assert frame.rdd.getNumPartitions() >= 3
    assert "nsq" in shown.getvalue()
    assert SECRET not in shown.getvalue()


def test_a_stream_is_written_to_a_topic(spark, nsqd, options, tmp_path):
    """A stream copies a topic over TLS, snappy and AUTH; progress and checkpoint have no secret."""
    publish(nsqd, options["topic"], numbered(500))
    copy = options["topic"] + ".copy"
    publish(nsqd, copy, [b"first"])
    stream = spark.readStream.format("nsq").options(
        channel="copy", startingOffsets="earliest", maxOffsetsPerTrigger="200", **options
    )
    query = (
        stream.load()
        .writeStream.format("nsq")
        .options(**{**options, "topic": copy, "checkpointLocation": str(tmp_path)})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(WAIT_SECONDS)
    told = json.dumps([json.loads(progress.json) for progress in query.recentProgress])
    copies = spark.read.format("nsq").options(**{**options, "topic": copy}).load().collect()
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]

    assert query.exception() is None
    assert Counter([b"first", *numbered(500)]) == Counter(bytes(row.body) for row in copies)
    assert 0 == nsqd.channel(options["topic"], "copy")["depth"]
    assert '"numInputRows": 200' in told
    assert SECRET not in told
    assert not any(SECRET.encode() in text for text in kept)
