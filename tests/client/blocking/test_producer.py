"""client.blocking.producer: what no conversation with a session shows (see test_session)."""

from __future__ import annotations

import threading

import sparq
from tests.client.conftest import Company


def test_a_buffer_may_be_used_again_at_once(company: Company) -> None:
    """``submit`` has published what it was given, not what stood there afterwards."""
    topic, nsqd = company.make("buffer"), company.nsqds[0]
    taken = threading.Event()
    with sparq.connect(nsqd.tcp) as session, session.producer() as producer:
        for kind in (bytearray, lambda body: memoryview(bytearray(body))):
            buffer = kind(b"before")
            producer._thread.post(taken.wait, 10)
            future = producer.submit(topic, buffer)
            buffer[:] = b"behind"
            taken.set()
            future.result(20)
            taken.clear()
        with session.consumer(topic, "c") as consumer:
            found = []
            for message in (consumer.receive(20) for _ in range(2)):
                found.append(message.body)
                message.finish()

    assert [b"before", b"before"] == found
