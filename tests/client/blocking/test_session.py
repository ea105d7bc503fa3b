"""client.blocking.session: producers and consumers, sharing by threads and forks, and closing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

import pytest

import sparq
from sparq.client import (
    BlockingConsumer,
    BlockingProducer,
    ClosedError,
    RemoteError,
    Session,
)
from tests.client.blocking.sessions import fill, is_empty, running
from tests.support.servers import NsqdServer
from tests.support.waiting import wait_for


def test_publish_and_consume(session: Session, nsqd: NsqdServer) -> None:
    """Publish in six ways, receive in a for loop, and finish: nsqd's channel is empty."""
    with session.producer() as producer:
        receipt = producer.publish("basic", b"one")
        producer.multi_publish("basic", [b"two", b"three"])
        producer.publish_deferred("basic", b"later", 2.0)
        futures = [producer.submit("basic", b"%d" % number) for number in range(47)]
        futures.append(producer.multi_submit("basic", (b"47", bytearray(b"48"))))
        futures.append(producer.submit_deferred("basic", b"49", 0.2))
        assert {receipt.nsqd} == {future.result().nsqd for future in futures} == {nsqd.tcp}
        assert (54, 0, 0) == (producer.published, producer.resent, producer.failed)
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


SCRIPT = """
import sys, sparq
session = sparq.connect(sys.argv[1])
consumer = session.consumer(sys.argv[2], "c", max_in_flight=10, msg_timeout=1.0)
for message in consumer:
    print(message.attempts, flush=True)
    if sys.argv[2] == "script_left":
        break
"""


def test_scripts_without_close_exit(session: Session, nsqd: NsqdServer) -> None:
    """Scripts exit normally and by Ctrl-C without ``close``; nsqd redelivers their messages."""
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
    """Four threads publish and three consume: each of 200 messages is handled once."""
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


async def test_the_blocking_api_works_inside_a_running_event_loop(session: Session) -> None:
    """The blocking API works where an event loop runs already, as in a notebook."""
    fill(session, "notebook", 1)
    with session.consumer("notebook", "c") as consumer:
        assert b"0" == consumer.receive(10).body


def test_errors_of_the_asyncio_client_are_raised(session: Session) -> None:
    """A refusal by nsqd is a RemoteError with its code; a wrong topic name is a ValueError."""
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


def test_a_closed_session_raises_closed_error(nsqd: NsqdServer) -> None:
    """After ``close``, every use raises ClosedError, iterations end, and ``close`` is harmless."""
    session = sparq.connect(nsqd.tcp)
    producer, consumer = session.producer(), session.consumer("closed", "c")
    ended: list[object] = []
    loops = (lambda: ended.extend(consumer), lambda: ended.extend(consumer.batches()))
    waiting = [threading.Thread(target=loop) for loop in loops]
    for thread in waiting:
        thread.start()
    session.close()
    for thread in waiting:
        thread.join(10)
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

    assert not any(thread.is_alive() for thread in waiting)
    assert [] == [*ended, *consumer, *consumer.batches()]
    assert not running()


def _use_in_forked_child(
    session: Session, producer: BlockingProducer, consumer: BlockingConsumer, outcomes: Any
) -> None:
    with session, producer, consumer:
        uses = (lambda: producer.submit("forked", b"x"), session.producer, consumer.receive)
        for use in (*uses, lambda: next(consumer)):
            try:
                use()
            except ClosedError as error:
                outcomes.put(str(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_affect_the_parent(session: Session) -> None:
    """A forked child gets ClosedError; leaving the blocks there does not affect the parent."""
    forking = multiprocessing.get_context("fork")
    outcomes = forking.Queue()
    fill(session, "forked", 3)
    with session.producer() as producer, session.consumer("forked", "c") as consumer:
        consumer.receive(10).finish()
        given = (session, producer, consumer, outcomes)
        child = forking.Process(target=_use_in_forked_child, args=given, daemon=True)
        child.start()
        texts = [outcomes.get(timeout=30) for _ in range(4)]
        child.join(30)

        assert [b"1", b"2"] == [consumer.receive(10).body for _ in range(2)]
    assert 0 == child.exitcode
    assert all("process that made it" in text for text in texts)


def test_importing_sparq_loads_neither_asyncio_nor_aiohttp() -> None:
    """``import sparq`` imports neither asyncio nor aiohttp."""
    asked = "import sys, sparq; print([m for m in ('asyncio', 'aiohttp') if m in sys.modules])"

    assert b"[]\n" == subprocess.check_output([sys.executable, "-c", asked])


def test_a_second_ctrl_c_closes_without_waiting(closed_address: str) -> None:
    """A second Ctrl-C closes without waiting for ``stop_timeout``; futures get ClosedError."""
    outcomes: list[BaseException | None] = []
    with (
        pytest.raises(KeyboardInterrupt),
        sparq.connect(closed_address, stop_timeout=60.0) as session,
    ):
        futures = [session.producer().submit("t", b"x") for _ in range(2)]
        others = [
            threading.Thread(
                target=lambda each=each: outcomes.append(each.exception()), daemon=True
            )
            for each in futures
        ]
        for each in others:
            each.start()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise KeyboardInterrupt
    for each in others:
        each.join(10)

    assert [ClosedError] * 2 == [type(each) for each in outcomes]
    assert not running()


def test_a_garbage_collected_session_ends(closed_address: str) -> None:
    """A session that is garbage-collected with its consumer ends, with a ResourceWarning."""

    def forget() -> None:
        consumer = sparq.connect(closed_address).consumer("t", "c", on_giving_up=print)
        with pytest.raises(TimeoutError, match="no message"):
            consumer.receive(0.05)

    with pytest.warns(ResourceWarning, match="not closed"):
        forget()
        gc.collect()

    assert not running()


EXITS_WITHOUT_CLOSE = """
import os, sys, sparq
producer = sparq.connect(sys.argv[1]).producer()
for _ in range(3):
    producer.submit("t", b"x")
sys.exit(os.waitpid(child, 0)[1] if (child := os.fork()) else 0)
"""


def test_an_exit_without_close_prints_the_pending_publishes(closed_address: str) -> None:
    """A program that exits without ``close`` prints its pending publishes, once despite a fork."""
    command = [sys.executable, "-c", EXITS_WITHOUT_CLOSE, closed_address]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, timeout=20)

    assert 1 == ran.stderr.count("3 publishes still pending at exit")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((), {}, ValueError, "nsqd_tcp_addresses or lookupd_http_addresses"),
        (("h:1",), {"max_in_fligth": 1}, TypeError, "max_in_flight"),
    ],
)
def test_wrong_arguments_of_connect_raise(
    arguments: Any, options: Any, error: type[Exception], text: str
) -> None:
    """Wrong arguments of ``connect`` raise an error that names them, and start no thread."""
    with pytest.raises(error, match=text):
        sparq.connect(*arguments, **options)

    assert not running()
