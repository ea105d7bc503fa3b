"""client.blocking.consumer: what no conversation with a session shows (see test_session)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import sparq
from sparq.client import BlockingBatch, Message
from sparq.client.blocking.fetcher import Fetcher
from sparq.client.blocking.loop_thread import LoopThread
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import wait_for


def test_ctrl_c_while_it_starts_leaves_no_consumer_behind(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody has got would receive messages that nobody handles."""
    topic, nsqd = shared_daemons.make("orphan"), shared_daemons.nsqds[0]
    asked = LoopThread.ask

    def interrupted(self: LoopThread, question: Callable[[], Any]) -> Any:
        answer = asked(self, question)
        if getattr(question, "__name__", "") == "start":
            raise KeyboardInterrupt
        return answer

    with sparq.connect(nsqd.tcp) as session:
        monkeypatch.setattr(LoopThread, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.consumer(topic, "c")
        monkeypatch.undo()
        nsqd.post(f"/pub?topic={topic}", b"x")
        message = session.consumer(topic, "c").receive(20)
        message.finish()
        wait_for(lambda: len(nsqd.channel(topic, "c")["clients"]) == 1)

    assert 1 == message.attempts


def test_who_is_too_slow_for_a_message_waits_for_the_next(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take what has just come: that is no end of the iteration."""
    topic, nsqd = shared_daemons.make("slower"), shared_daemons.nsqds[0]
    nsqd.post(f"/pub?topic={topic}", b"x")
    waiting = Fetcher.next
    robbed: list[Message] = []

    def rob(self: Fetcher[object], deadline: float | None = None) -> object:
        found = waiting(self, deadline)
        if not robbed:
            while consumer._ready:
                robbed.append(consumer._ready.popleft())
            robbed[0].requeue(0, backoff=False)
        return found

    with sparq.connect(nsqd.tcp) as session:
        monkeypatch.setattr(Fetcher, "next", rob)
        consumer = session.consumer(topic, "c")
        message = consumer.receive(20)
        message.finish()

    assert (robbed[0].id, 2) == (message.id, message.attempts)


def test_batches_end_with_the_session(shared_daemons: SharedDaemons) -> None:
    """As a loop over messages does: what is closed has no more, and that is no error."""
    topic, nsqd = shared_daemons.make("ended"), shared_daemons.nsqds[0]
    with sparq.connect(nsqd.tcp) as session:
        consumer = session.consumer(topic, "c")
        ended: list[list[BlockingBatch]] = []
        waiting = threading.Thread(target=lambda: ended.append([*consumer.batches()]))
        waiting.start()
    waiting.join(10)

    assert [[]] == ended
    assert [] == [*consumer.batches()] == [*consumer]


def test_any_function_may_give_up(shared_daemons: SharedDaemons) -> None:
    """Ordinary or not, as with an event loop; False says that it has failed."""
    topic, nsqd = shared_daemons.make("giving_up"), shared_daemons.nsqds[0]
    nsqd.post(f"/pub?topic={topic}", b"x")
    attempts: list[int] = []

    async def give_up(message: Message) -> bool:
        attempts.append(message.attempts)
        return len(attempts) > 1

    options = {"max_attempts": 1, "max_backoff_duration": 0, "default_requeue_delay": 0}
    with sparq.connect(nsqd.tcp, **options) as session:
        with session.consumer(topic, "c", on_giving_up=give_up) as consumer:
            consumer.receive(20).requeue(0)
            # It is given up while somebody asks for messages.
            wait_for(lambda: [*consumer.messages(idle_timeout=0.05)] or consumer.counters.finished)
            assert (2, 1) == (consumer.counters.requeued, consumer.counters.finished)
        with pytest.raises(TypeError, match="on_giving_up takes a function"):
            session.consumer(topic, "c", on_giving_up=5)

    assert [2, 3] == attempts


def test_batches_may_be_left_on_the_session_s_thread(shared_daemons: SharedDaemons) -> None:
    """Where the collector of garbage happens to run: that thread cannot wait for itself."""
    topic, nsqd = shared_daemons.make("collected"), shared_daemons.nsqds[0]
    nsqd.post(f"/mpub?topic={topic}", b"1\n2")
    with sparq.connect(nsqd.tcp, max_in_flight=10) as session:
        consumer = session.consumer(topic, "c")
        left = [consumer.batches(1, 0)]
        next(left[0]).finish()
        session._thread.ask(left.clear)
        message = consumer.receive(20)
        message.finish()

    assert message.body in (b"1", b"2")
