"""client.blocking.producer: submitted publishes, their limit, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

import sparq
from sparq.client.blocking.producer import ByteLimit
from tests.client.blocking.sessions import interrupt_soon, running
from tests.support.servers import NsqdServer, free_port
from tests.support.shared_daemons import SharedDaemons


def test_a_submit_cancelled_before_it_starts_is_not_published() -> None:
    """A submit that is cancelled, or interrupted by Ctrl-C, is not sent and frees its bytes."""
    gate = threading.Event()
    with (
        sparq.connect(f"127.0.0.1:{free_port()}", stop_timeout=0.0) as session,
        session.producer() as producer,
    ):
        thread, loop = producer._thread, producer._thread._loop
        thread.post(gate.wait, 10)
        future = producer.submit("t", b"x")
        assert future.cancel()

        class Interrupting:
            def call_soon_threadsafe(self, *_: object) -> None:
                raise KeyboardInterrupt

        gate.set()
        thread.call(int)
        thread._loop = Interrupting()  # type: ignore[assignment] - interrupts at the worst moment
        with pytest.raises(KeyboardInterrupt):
            producer.submit("t", b"x")
        thread._loop = loop
        thread.submit(asyncio.sleep, 0).result(10)

        assert (0, 0) == (producer.under_way, producer._byte_limit.count)


def test_submit_copies_a_mutable_buffer(shared_daemons: SharedDaemons) -> None:
    """``submit`` copies a mutable buffer: the program may overwrite it immediately."""
    topic, nsqd = shared_daemons.make("buffer"), shared_daemons.nsqds[0]
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


def test_submit_blocks_while_max_pending_bytes_are_pending(nsqd: NsqdServer) -> None:
    """``submit`` blocks while ``max_pending_bytes`` are pending; all messages are published."""
    with (
        sparq.connect(nsqd.tcp, max_pending_bytes=5_000) as session,
        session.producer() as producer,
    ):
        futures, most = [], 0
        for _ in range(200):
            futures.append(producer.submit("bounded", b"x" * 1_000))
            most = max(most, sum(not future.done() for future in futures))
        producer.flush()

        assert 5 > most
        assert (200, 0, 0) == (producer.published, producer.failed, producer.under_way)


def test_ctrl_c_interrupts_a_publish(closed_address: str) -> None:
    """Ctrl-C interrupts a publish that waits for an nsqd; leaving the block ends the thread."""
    before = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        sparq.connect(closed_address) as session,
        session.producer() as producer,
    ):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        producer.publish("t", b"x")

    assert not running()
    assert time.monotonic() - before < 10


def test_wrong_arguments_of_submit_are_raised_by_the_future(closed_address: str) -> None:
    """Wrong arguments to ``submit`` raise nothing; the future carries the error."""
    wrong: Any = None
    with sparq.connect(closed_address) as session, session.producer() as producer:
        futures = [
            producer.submit("t", wrong),
            producer.multi_submit("t", "text"),  # type: ignore[arg-type] # a mistake
            producer.multi_submit("t", wrong),
            producer.multi_submit("t", []),
            producer.submit_deferred("t", b"x", -1),
        ]
        errors = [type(future.exception(10)) for future in futures]

    assert [TypeError] * 3 + [ValueError] * 2 == errors


def test_a_publish_larger_than_the_limit_is_admitted_alone() -> None:
    """A publish above the limit is admitted if it is alone; the next waits until it leaves."""
    limit = ByteLimit(10)
    limit.enter(100)
    waiting = threading.Thread(target=limit.enter, args=(1,), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert 1 == limit.count
    limit.leave(100)
    waiting.join(10)

    assert not waiting.is_alive()
    assert 1 == limit.count


def test_leave_does_not_wait_for_a_thread_in_enter() -> None:
    """``leave`` waits for no lock: a signal handler may interrupt ``enter`` and make a call."""
    limit = ByteLimit(10)
    limit.enter(10)
    with limit._lock:
        leaving = threading.Thread(target=limit.leave, args=(10,), daemon=True)
        leaving.start()
        leaving.join(10)
        assert not leaving.is_alive()
    limit.enter(10)

    assert 1 == limit.count


def test_an_interrupted_wait_counts_no_bytes() -> None:
    """A wait that Ctrl-C interrupts counts no bytes: the whole limit is free afterwards."""
    limit = ByteLimit(10)
    limit.enter(10)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        limit.enter(5)
    limit.leave(10)
    limit.enter(10)

    assert 1 == limit.count
