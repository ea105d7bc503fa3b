"""client.blocking.message_proxy: responses from any thread, and the byte limit of publishes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparq.client import AlreadyRespondedError, Session
from sparq.client.blocking.message_proxy import ByteLimit
from tests.client.blocking.sessions import fill, interrupt_soon, is_empty
from tests.support.servers import NsqdServer
from tests.support.waiting import wait_for


def test_each_message_takes_one_response(session: Session, nsqd: NsqdServer) -> None:
    """REQ redelivers with attempts 2, TOUCH is counted, and a second response is an error."""
    fill(session, "answers", 1)
    with session.consumer("answers", "c") as consumer:
        message = consumer.receive(10)
        message.touch()
        message.requeue(0)
        for answer in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyRespondedError):
                answer()
        again = consumer.receive(10)
        again.finish()
        wait_for(lambda: is_empty(nsqd, "answers"))

        assert (again.id, 2) == (message.id, again.attempts)
        assert (1, 1, 1) == (
            consumer.counters.touched,
            consumer.counters.requeued,
            consumer.counters.finished,
        )


def test_batches_can_be_read_touched_finished_and_requeued(
    session: Session, nsqd: NsqdServer
) -> None:
    """A batch is read, touched, finished and requeued, as a whole or message by message."""
    bodies = fill(session, "batches", 20)
    with session.consumer("batches", "c") as consumer:
        consumer.receive(10).finish()
        wait_for(lambda: consumer.counters.received == 20)
        first = next(batches := consumer.batches(5, 0.05, idle_timeout=0.5))
        assert bodies[1:6] == first.bodies
        first[0].finish()
        first.touch()
        first.finish()
        for answer in (first.finish, first.requeue, first.touch):
            with pytest.raises(AlreadyRespondedError):
                answer()
        second = next(batches)
        second.requeue(0, backoff=False)
        seen = [body for batch in batches for body in finish_batch(batch)]
        wait_for(lambda: is_empty(nsqd, "batches"))

        assert sorted(bodies[6:]) == sorted(seen)
        assert 5 == consumer.counters.requeued
        assert 4 == consumer.counters.touched


def finish_batch(batch: Any) -> list[bytes]:
    """Finish a batch, half of it message by message."""
    assert len(batch) == len(batch.bodies)
    for message in batch[: len(batch) // 2]:
        message.finish()
    batch.finish()
    return [message.body for message in batch]


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
