"""client.blocking.consumer: timeouts, batches, Ctrl-C, and closing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import sparq
from sparq.client import AlreadyRespondedError, ClosedError, Message, Session
from sparq.client.blocking.loop_thread import LoopThread
from tests.client.blocking.sessions import fill, interrupt_soon, is_empty, running
from tests.support.servers import NsqdServer
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import wait_for


def test_ctrl_c_during_the_start_closes_the_consumer(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that Ctrl-C interrupts while it starts is closed, and takes no messages."""
    topic, nsqd = shared_daemons.make("orphan"), shared_daemons.nsqds[0]
    called = LoopThread.call

    def interrupted(
        self: LoopThread, work: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        answer = called(self, work, *arguments, **named)
        if getattr(work, "__name__", "") == "start":
            raise KeyboardInterrupt
        return answer

    with sparq.connect(nsqd.tcp) as session:
        monkeypatch.setattr(LoopThread, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.consumer(topic, "c")
        monkeypatch.undo()
        nsqd.post(f"/pub?topic={topic}", b"x")
        message = session.consumer(topic, "c").receive(20)
        message.finish()
        wait_for(lambda: len(nsqd.channel(topic, "c")["clients"]) == 1)

    assert 1 == message.attempts


def test_batches_may_be_garbage_collected_on_the_sessions_thread(
    shared_daemons: SharedDaemons,
) -> None:
    """A batch iterator may be garbage-collected on the session's thread without a deadlock."""
    topic, nsqd = shared_daemons.make("collected"), shared_daemons.nsqds[0]
    nsqd.post(f"/mpub?topic={topic}", b"1\n2")
    with sparq.connect(nsqd.tcp, max_in_flight=10) as session:
        consumer = session.consumer(topic, "c")
        left = [consumer.batches(1, 0)]
        next(left[0]).finish()
        session._thread.call(left.clear)
        message = consumer.receive(20)
        message.finish()

    assert message.body in (b"1", b"2")


def test_receive_and_iterations_end_after_their_timeouts(session: Session) -> None:
    """``receive`` times out; ``messages`` and ``batches`` end after ``idle_timeout``."""
    fill(session, "waits", 3)
    with session.consumer("waits", "c") as consumer:
        first = consumer.receive(timeout_seconds=10)
        rest = [*consumer.messages(idle_timeout=0.2)]
        with pytest.raises(TimeoutError):
            consumer.receive(timeout_seconds=0.05)
        assert [] == list(consumer.batches(idle_timeout=0.05))
        assert [b"0", b"1", b"2"] == [each.body for each in (first, *rest)]
        fill(session, "waits", 1)
        assert b"0" == consumer.receive(timeout_seconds=10).body
    assert [] == list(consumer)
    with pytest.raises(ClosedError):
        consumer.receive()


def test_a_batch_loop_that_ends_early_loses_no_message(session: Session) -> None:
    """Messages gathered for a batch when ``idle_timeout`` ends the loop go to the next caller."""
    with session.consumer("left", "c") as consumer:
        wait_for(lambda: consumer.connections)
        assert [] == list(consumer.batches(1000, wait=30, idle_timeout=0.05))
        fill(session, "left", 3)
        assert [] == list(consumer.batches(1000, wait=30, idle_timeout=0.3))
        seen = sorted(message.body for message in consumer.messages(idle_timeout=0.3))

    assert [b"0", b"1", b"2"] == seen


def test_ctrl_c_loses_no_message(session: Session) -> None:
    """Messages that arrive after Ctrl-C interrupted a wait are received by the next loop, once."""
    with session.consumer("interrupted", "c") as consumer:
        for wait in (consumer.receive, lambda: next(consumer.batches())):
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                wait()
        bodies = fill(session, "interrupted", 10)
        seen = []
        for message in consumer.messages(idle_timeout=5):
            seen.append(message.body)
            assert message.attempts == 1
            message.finish()
            if len(seen) == 10:
                break

        assert bodies == seen


def test_close_requeues_messages_that_no_caller_has_received(session: Session) -> None:
    """``close`` requeues what was fetched for the program, or has arrived since, at once."""
    fill(session, "back", 20)
    first = session.consumer("back", "c")
    in_hand = first.receive(10)
    wait_for(lambda: first.counters.received == 20)
    fill(session, "back", 10)
    wait_for(lambda: first.counters.received == 30)
    first.close()
    with session.consumer("back", "c") as second:
        seen = {message.id: message.attempts for message in second.messages(idle_timeout=0.5)}

    assert 29 == len(seen)
    assert in_hand.id not in seen
    assert {2} == set(seen.values())


def test_close_lets_another_thread_finish_its_message(session: Session) -> None:
    """``close(wait_seconds)`` lets another thread finish its message before it closes."""
    fill(session, "grace", 1)
    consumer = session.consumer("grace", "c")
    message = consumer.receive(10)
    threading.Timer(0.2, message.finish).start()
    consumer.close(wait_seconds=10)

    assert 1 == consumer.counters.finished


def test_a_fetched_message_past_its_timeout_is_dropped(session: Session) -> None:
    """A fetched message that waited past its timeout is dropped; its redelivery is received."""
    fill(session, "stale", 2)
    options = {"msg_timeout": 1.0, "rdy_redistribute_interval": 0.05}
    with session.consumer("stale", "c", **options) as consumer:
        first = consumer.receive(10)
        wait_for(lambda: consumer.counters.expired == 2)
        seen = [consumer.receive(10) for _ in range(2)]

        assert first.stale
        assert {(b"0", 2), (b"1", 2)} == {(each.body, each.attempts) for each in seen}


def test_a_signal_handler_may_receive_where_it_interrupts_a_receive(session: Session) -> None:
    """A ``receive`` in a signal handler gets a message, and so does the one it interrupts."""
    taken: list[Message] = []
    with session.consumer("interrupted", "c") as consumer:

        def handle(*_: object) -> None:
            fill(session, "interrupted", 2)
            taken.append(consumer.receive(10))

        usual = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            taken.append(consumer.receive(10))
        finally:
            signal.signal(signal.SIGALRM, usual)
        for message in taken:
            message.finish()

    assert [b"0", b"1"] == sorted(message.body for message in taken)


@pytest.mark.parametrize("is_async", [False, True])
def test_on_giving_up_may_block_and_may_be_a_coroutine_function(
    session: Session, is_async: bool
) -> None:
    """``on_giving_up`` does not block the session's thread, or is awaited; False requeues."""
    topic = f"up-{is_async}"
    fill(session, topic, 1)
    given_up: list[int] = []

    def give_up(message: Message) -> bool:
        assert is_async or threading.current_thread() not in running()
        given_up.append(message.attempts)
        return len(given_up) > 1

    async def give_up_later(message: Message) -> bool:
        return give_up(message)

    options = {"max_attempts": 1, "default_requeue_delay": 0}
    handler = give_up_later if is_async else give_up
    with session.consumer(topic, "c", on_giving_up=handler, **options) as consumer:
        consumer.receive(10).requeue(0)
        # The message is given up while a caller waits for messages.
        wait_for(lambda: [*consumer.messages(idle_timeout=0.05)] or consumer.counters.finished)
        assert (2, 1) == (consumer.counters.requeued, consumer.counters.finished)
    with pytest.raises(TypeError, match="on_giving_up takes a function"):
        session.consumer(topic, "c", on_giving_up=5)

    assert [2, 3] == given_up


def test_pause_resume_and_max_in_flight_take_effect(session: Session) -> None:
    """``pause``, ``resume`` and ``max_in_flight`` take effect, and the state is readable."""
    with session.consumer("steered", "c", max_in_flight=5) as consumer:
        wait_for(lambda: consumer.connections)
        consumer.pause()
        fill(session, "steered", 10)
        assert [] == list(consumer.messages(idle_timeout=0.2))
        assert consumer.is_paused
        consumer.resume()
        wait_for(lambda: consumer.in_flight == 5)
        assert consumer.is_starved
        consumer.max_in_flight = 10
        wait_for(lambda: consumer.in_flight == 10)

        assert (10, 10, 0, {}) == (
            consumer.max_in_flight,
            consumer.config.max_in_flight,
            consumer.backoff_level,
            consumer.errors,
        )
        assert not consumer.is_paused


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


def test_a_batch_that_arrives_as_the_loop_ends_is_requeued(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that arrives just as the loop ends is requeued, and nsqd delivers it again."""
    topic, nsqd = shared_daemons.make("feed"), shared_daemons.nsqds[0]
    nsqd.post(f"/pub?topic={topic}", b"x")
    waiting = LoopThread.wait

    def late(thread: LoopThread, outcome: Any, seconds: float | None = None) -> object:
        """Wait for the batch, then time out as if it had arrived too late."""
        waiting(thread, outcome)
        monkeypatch.undo()
        raise TimeoutError

    with sparq.connect(nsqd.tcp) as session, session.consumer(topic, "c") as consumer:
        monkeypatch.setattr(LoopThread, "wait", late)
        assert [] == list(consumer.batches(1, 0))
        again = consumer.receive(10)
        again.finish()

        assert (b"x", 2) == (again.body, again.attempts)
