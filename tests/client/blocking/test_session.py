"""sparq.connect with a real nsqd: publishing and consuming without an event loop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import sparq
from sparq.client import (
    AlreadyRespondedError,
    Batch,
    BlockingBatch,
    BlockingConsumer,
    BlockingProducer,
    ClosedError,
    Consumer,
    Message,
    Producer,
    RemoteError,
    Session,
)
from tests.client.blocking.conftest import running
from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd; each test uses a topic of its own."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd"), "--max-msg-size=10000") as server:
        yield server


@pytest.fixture
def session(nsqd: NsqdServer) -> Iterator[Session]:
    """A session, which leaves no thread."""
    with sparq.connect(nsqd.tcp, max_in_flight=100, max_backoff_duration=0) as made:
        yield made
    assert not running()


def fill(session: Session, topic: str, count: int) -> list[bytes]:
    """Publish so many different messages."""
    bodies = [b"%d" % number for number in range(count)]
    with session.producer() as producer:
        producer.multi_publish(topic, bodies)
    return bodies


def is_empty(nsqd: NsqdServer, topic: str) -> bool:
    found = nsqd.channel(topic, "c")
    return bool(found) and found["depth"] + found["in_flight_count"] + found["deferred_count"] == 0


def test_publish_and_consume(session: Session, nsqd: NsqdServer) -> None:
    """The four ways to publish; a for loop over messages; FIN is seen by nsqd."""
    with session.producer() as producer:
        receipt = producer.publish("basic", b"one")
        producer.multi_publish("basic", [b"two", b"three"])
        producer.publish_deferred("basic", b"later", 2.0)
        futures = [producer.submit("basic", b"%d" % number) for number in range(50)]
        assert {receipt.nsqd} == {future.result().nsqd for future in futures} == {nsqd.tcp}
        assert (54, 0) == (producer.published, producer.resent)
        assert [nsqd.tcp] == producer.connections
        assert {} == producer.errors
        assert [nsqd.tcp] == list(producer.ping(timeout_seconds=10))
    seen = []
    with session.consumer("basic", "c") as consumer:
        for message in consumer:
            seen.append(message.body)
            message.finish()
            if len(seen) == 54:
                break
        wait_for(lambda: consumer.in_flight == 0)
        assert (54, 54) == (consumer.counters.received, consumer.counters.finished)
        assert [nsqd.tcp] == consumer.connections
    wait_for(lambda: is_empty(nsqd, "basic"))

    assert [b"one", b"two", b"three"] == seen[:3]
    assert {b"later", *(b"%d" % number for number in range(50))} == set(seen[3:])


def test_submitting_is_bounded_by_bytes(nsqd: NsqdServer) -> None:
    """It waits where ``max_pending_bytes`` are under way, and all are published in the end."""
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


def test_waits_have_ends(session: Session) -> None:
    """``receive`` times out, ``messages`` and ``batches`` end when nothing comes for a while."""
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


def test_answers_go_once_and_take_effect(session: Session, nsqd: NsqdServer) -> None:
    """REQ comes again with one attempt more, TOUCH is counted, a second answer is an error."""
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


def test_batches(session: Session, nsqd: NsqdServer) -> None:
    """Bodies without messages; messages answered singly; REQ of a batch; what a loop had left."""
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
        seen = [body for batch in batches for body in take(batch)]
        wait_for(lambda: is_empty(nsqd, "batches"))

        assert sorted(bodies[6:]) == sorted(seen)
        assert 5 == consumer.counters.requeued
        assert 4 == consumer.counters.touched


def take(batch: Any) -> list[bytes]:
    """Finish a batch, half of it message by message."""
    assert len(batch) == len(batch.bodies)
    for message in batch[: len(batch) // 2]:
        message.finish()
    batch.finish()
    return [message.body for message in batch]


def test_a_left_batch_loop_loses_nothing(session: Session) -> None:
    """A wait for a batch that is given up leaves what it had gathered to the next who asks."""
    with session.consumer("left", "c") as consumer:
        wait_for(lambda: consumer.connections)
        assert [] == list(consumer.batches(1000, wait=30, idle_timeout=0.05))
        fill(session, "left", 3)
        assert [] == list(consumer.batches(1000, wait=30, idle_timeout=0.3))
        seen = sorted(message.body for message in consumer.messages(idle_timeout=0.3))

    assert [b"0", b"1", b"2"] == seen


@pytest.mark.parametrize("size", [0, -1])
def test_mistakes_in_batches_are_told(session: Session, size: int) -> None:
    """As the consumer with an event loop tells them; what only that has is told, too."""
    with session.consumer("mistakes", "c") as consumer, pytest.raises(ValueError, match="size"):
        next(consumer.batches(size))
    with pytest.raises(TypeError, match="handler: iterate"):
        session.consumer("mistakes", "c", handler=print)
    with pytest.raises(ValueError, match="channel name"):
        session.consumer("mistakes", "a b")


def interrupt_soon(seconds: float = 0.1) -> None:
    """Ctrl-C, while the program waits."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_loses_no_message(session: Session) -> None:
    """In a notebook: the waiting cell is interrupted, messages come, the next cell gets them."""
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


SCRIPT = """
import sys, sparq
session = sparq.connect(sys.argv[1])
consumer = session.consumer(sys.argv[2], "c", max_in_flight=10, msg_timeout=1.0)
for message in consumer:
    print(message.attempts, flush=True)
    if sys.argv[2] == "script_left":
        break
"""


def test_scripts_that_close_nothing_end(session: Session, nsqd: NsqdServer) -> None:
    """One by itself, one by Ctrl-C; what they did not answer for comes again in its time."""
    with session.producer() as producer, ExitStack() as stack:
        scripts = []
        for topic in ("script_left", "script_interrupted"):
            producer.publish(topic, b"x")
            command = [sys.executable, "-c", SCRIPT, nsqd.tcp, topic]
            pipe = subprocess.PIPE
            scripts.append(
                stack.enter_context(
                    subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL)
                )
            )
        left, interrupted = scripts
        assert [b"1\n", b"1\n"] == [each.stdout.readline() for each in scripts if each.stdout]
        interrupted.send_signal(signal.SIGINT)
        assert (0, -signal.SIGINT) == (left.wait(20), interrupted.wait(20))
        for topic in ("script_left", "script_interrupted"):
            assert 2 == session.consumer(topic, "c").receive(20).attempts


def test_threads_share_a_session(session: Session, nsqd: NsqdServer) -> None:
    """Each message is published once and handled by one of them."""
    seen: list[bytes] = []
    with session.producer() as producer, session.consumer("threads", "c") as consumer:

        def publish(place: int) -> None:
            for number in range(50):
                producer.publish("threads", b"%d-%d" % (place, number))

        def consume() -> None:
            for message in consumer:
                seen.append(message.body)
                message.finish()

        consuming = [threading.Thread(target=consume) for _ in range(3)]
        publishing = [threading.Thread(target=publish, args=(place,)) for place in range(4)]
        for thread in (*consuming, *publishing):
            thread.start()
        wait_for(lambda: len(seen) == 200)
        wait_for(lambda: is_empty(nsqd, "threads"))
        consumer.close()
        for thread in (*consuming, *publishing):
            thread.join(10)
            assert not thread.is_alive()

    assert 200 == len(set(seen)) == producer.published


async def test_inside_a_running_loop(session: Session) -> None:
    """As in a notebook, whose loop runs already."""
    fill(session, "notebook", 1)
    with session.consumer("notebook", "c") as consumer:
        assert b"0" == consumer.receive(10).body


def test_closing_gives_back_what_was_not_handed_out(session: Session, nsqd: NsqdServer) -> None:
    """What crossed, what a given up wait has fetched, and what did not cross: all at once."""
    fill(session, "back", 20)
    first = session.consumer("back", "c")
    in_hand = first.receive(10)
    for _ in first.messages(idle_timeout=0.2):
        pass
    fill(session, "back", 10)
    wait_for(lambda: first.counters.received == 30)
    first.close()
    with session.consumer("back", "c") as second:
        seen = {message.id: message.attempts for message in second.messages(idle_timeout=0.5)}

    assert 10 == len(seen)
    assert in_hand.id not in seen
    assert {2} == set(seen.values())


def test_closing_gives_back_what_crossed_unseen(session: Session) -> None:
    """A loop that is left after its first message keeps the others from nobody."""
    fill(session, "crossed", 20)
    first = session.consumer("crossed", "c")
    first.receive(10).finish()
    wait_for(lambda: first.counters.received == 20)
    first.close()
    with session.consumer("crossed", "c") as second:
        seen = [message.attempts for message in second.messages(idle_timeout=0.5)]

    assert [2] * 19 == seen


def test_a_consumer_is_closed_with_time_for_others(session: Session) -> None:
    """``close(wait_seconds)`` lets another thread answer for what it has."""
    fill(session, "grace", 1)
    consumer = session.consumer("grace", "c")
    message = consumer.receive(10)
    threading.Timer(0.2, message.finish).start()
    consumer.close(wait_seconds=10)

    assert 1 == consumer.counters.finished


def test_what_nsqd_has_given_up_is_not_handed_out(session: Session) -> None:
    """What crossed and waited for too long is left out; nsqd's next delivery is handed out."""
    fill(session, "stale", 2)
    options = {"msg_timeout": 1.0, "rdy_redistribute_interval": 0.05}
    with session.consumer("stale", "c", **options) as consumer:
        first = consumer.receive(10)
        wait_for(lambda: consumer.counters.expired == 2)
        seen = [consumer.receive(10) for _ in range(2)]

        assert first.stale
        assert {(b"0", 2), (b"1", 2)} == {(each.body, each.attempts) for each in seen}


def test_a_message_is_looked_at_as_it_is_handed_out(session: Session) -> None:
    """Not only when the consumer next counts what is over, which is seconds later by default."""
    fill(session, "late", 2)
    options = {"msg_timeout": 1.0, "rdy_redistribute_interval": 5.0}
    with session.consumer("late", "c", **options) as consumer:
        first = consumer.receive(10)
        wait_for(lambda: time.monotonic() > first.expires_at)
        seen = [consumer.receive(10) for _ in range(2)]

        assert {(b"0", 2), (b"1", 2)} == {(each.body, each.attempts) for each in seen}


def test_giving_up_happens_on_a_thread_of_its_own(session: Session) -> None:
    """The callback may wait and answer as any other part of the program."""
    fill(session, "up", 1)
    given_up: list[tuple[int, bool]] = []

    def give_up(message: Message) -> None:
        given_up.append((message.attempts, threading.current_thread() in running()))

    with session.consumer("up", "c", max_attempts=1, on_giving_up=give_up) as consumer:
        consumer.receive(10).requeue(0)
        assert [] == list(consumer.messages(idle_timeout=0.3))

        assert [(2, False)] == given_up
        assert (1, 1) == (consumer.counters.given_up, consumer.counters.finished)


def test_a_consumer_can_be_steered(session: Session) -> None:
    """Pause, resume, ``max_in_flight``, and what is known."""
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


def test_sources_change_at_run_time(session: Session, nsqd: NsqdServer) -> None:
    """An nsqd, and an nsqlookupd, come and go as with an event loop."""
    nowhere, lookupd = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with session.consumer("sources", "c") as consumer:
        consumer.connect_to_nsqd(nowhere)
        consumer.connect_to_nsqlookupd(lookupd)
        wait_for(lambda: len(consumer.errors) == 2)
        consumer.disconnect_from_nsqd(nowhere)
        consumer.disconnect_from_nsqlookupd(lookupd)
        wait_for(lambda: consumer.errors == {})
        with pytest.raises(ValueError, match="last source"):
            consumer.disconnect_from_nsqd(nsqd.tcp)


def test_both_faces_can_do_the_same() -> None:
    """What is there is here by its name, or submitted; but for what only an event loop needs."""
    awaited = {"start", "stop", "join", "drain"}
    faces = [(Consumer, BlockingConsumer), (Producer, BlockingProducer), (Batch, BlockingBatch)]
    for there, here in faces:
        names = {
            name.removesuffix("_nowait").replace("publish", "submit") if "_nowait" in name else name
            for name in dir(there)
        }
        assert set() == {each for each in names if each[0] != "_"} - set(dir(here)) - awaited


def test_errors_are_those_of_the_client(session: Session) -> None:
    """A refusal has nsqd's code; what never reaches nsqd is told before."""
    with session.producer() as producer:
        with pytest.raises(RemoteError) as refusal:
            producer.publish("errors", b"x" * 10_001)
        with pytest.raises(ValueError, match="topic name"):
            producer.publish("a b", b"x")
        assert isinstance(producer.submit("a b", b"x").exception(), ValueError)
        assert producer.publish("errors", b"x").attempts == 1
    with pytest.raises(ClosedError):
        producer.publish("errors", b"x")

    assert "E_BAD_MESSAGE" == refusal.value.code


def test_a_closed_session_says_so(nsqd: NsqdServer) -> None:
    """Whatever is asked of it, or of what it has made; closing again is harmless."""
    session = sparq.connect(nsqd.tcp)
    producer, consumer = session.producer(), session.consumer("closed", "c")
    waiting = threading.Thread(target=lambda: ended.extend(consumer))
    ended: list[Message] = []
    waiting.start()
    session.close()
    waiting.join(10)
    for use in (
        lambda: producer.publish("closed", b"x"),
        consumer.receive,
        session.producer,
        lambda: session.consumer("closed", "c"),
    ):
        with pytest.raises(ClosedError):
            use()
    for each in (session, producer, consumer):
        each.close()

    assert not waiting.is_alive()
    assert not running()


def _use_in_a_child(
    session: Session, producer: BlockingProducer, consumer: BlockingConsumer, told: Any
) -> None:
    with session, producer, consumer:
        uses = (lambda: producer.submit("forked", b"x"), session.producer, consumer.receive)
        for use in (*uses, lambda: next(consumer)):
            try:
                use()
            except ClosedError as error:
                told.put(str(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_harms_nobody(session: Session) -> None:
    """It is told that the session is its parent's; even leaving the block leaves that alone."""
    forking = multiprocessing.get_context("fork")
    told = forking.Queue()
    fill(session, "forked", 3)
    with session.producer() as producer, session.consumer("forked", "c") as consumer:
        consumer.receive(10).finish()
        given = (session, producer, consumer, told)
        child = forking.Process(target=_use_in_a_child, args=given, daemon=True)
        child.start()
        texts = [told.get(timeout=30) for _ in range(4)]
        child.join(30)

        assert [b"1", b"2"] == [consumer.receive(10).body for _ in range(2)]
    assert 0 == child.exitcode
    assert all("process that made it" in text for text in texts)
