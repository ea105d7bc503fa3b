"""sparq.connect without an nsqd: what it says then, and what it leaves."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sparq
from sparq.client import ClosedError, PublishError
from tests.client.blocking.conftest import running


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address that refuses connections, and that no other test's nsqd can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_importing_sparq_loads_next_to_nothing() -> None:
    """A script that never connects pays for no event loop and no HTTP client."""
    asked = "import sys, sparq; print([m for m in ('asyncio', 'aiohttp') if m in sys.modules])"

    assert b"[]\n" == subprocess.check_output([sys.executable, "-c", asked])


def test_ctrl_c_in_a_publish(nowhere: str) -> None:
    """A publish that waits for an nsqd is interrupted; the block is left, and no thread stays."""
    before = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        sparq.connect(nowhere) as session,
        session.producer() as producer,
    ):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        producer.publish("t", b"x")

    assert not running()
    assert time.monotonic() - before < 10


def test_two_ctrl_c_end_everything(nowhere: str) -> None:
    """The second one does not wait for ``stop_timeout``; who waits for a publish is told."""
    told: list[BaseException | None] = []
    with (
        pytest.raises(KeyboardInterrupt),
        sparq.connect(nowhere, stop_timeout=60.0) as session,
    ):
        futures = [session.producer().submit("t", b"x") for _ in range(2)]
        others = [
            threading.Thread(target=lambda each=each: told.append(each.exception()), daemon=True)
            for each in futures
        ]
        for each in others:
            each.start()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise KeyboardInterrupt
    for each in others:
        each.join(10)

    assert [ClosedError] * 2 == [type(each) for each in told]
    assert not running()


def test_a_close_that_is_interrupted_goes_on(nowhere: str) -> None:
    """Ctrl-C ends the wait for a producer's close, and the producer ends all the same."""
    with sparq.connect(nowhere, stop_timeout=0.3) as session:
        producer = session.producer()
        future = producer.submit("t", b"x")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            producer.close()

        assert isinstance(future.exception(10), PublishError | ClosedError)
        assert 0 == producer.under_way


def test_all_is_closed_at_the_same_time(nowhere: str) -> None:
    """However many producers a session has, closing takes one ``stop_timeout``."""
    with sparq.connect(nowhere, stop_timeout=1.0) as session:
        futures = [session.producer().submit("t", b"x") for _ in range(4)]
        before = time.monotonic()

    assert time.monotonic() - before < 3.0  # one after the other they would take four
    assert all(future.exception() for future in futures)


def test_what_is_no_message_is_told_by_the_future(nowhere: str) -> None:
    """``submit`` raises nothing itself, whatever it is given."""
    with sparq.connect(nowhere) as session, session.producer() as producer:
        wrong: list[Any] = [("t", None), ("t", 5), (None, b"x"), ("t", "text")]
        told = [producer.submit(*each).exception(10) for each in wrong]
        told += [producer.multi_submit(topic, [body]).exception(10) for topic, body in wrong]
        several: list[Any] = ["text", b"bytes", None, []]
        none = [producer.multi_submit("t", each).exception(10) for each in several]
        never = producer.submit_deferred("t", b"x", -1).exception(10)

    kinds = ["bytes, not NoneType", "bytes, not int", "a str, not NoneType", "bytes, not str"]
    assert kinds * 2 == [str(each).partition(":")[0].partition(" must be ")[2] for each in told]
    assert [TypeError] * 3 + [ValueError] == [type(each) for each in none]
    assert "delay_seconds must be" in str(never)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_nothing_of_a_session_goes_to_another_process(
    way: Callable[[Any], Any], nowhere: str
) -> None:
    """As a worker of a pool or of Spark would take it along: it is told what to do instead."""
    with sparq.connect(nowhere) as session:
        for each in (session, session.producer(), session.consumer("t", "c")):
            with pytest.raises(TypeError, match="make a session there"):
                way(each)


def test_a_forgotten_session_ends(nowhere: str) -> None:
    """Also when its consumer was waited for; who forgot it is told."""

    def forget() -> None:
        consumer = sparq.connect(nowhere).consumer("t", "c", on_giving_up=print)
        with pytest.raises(TimeoutError, match="no message"):
            consumer.receive(0.05)

    with pytest.warns(ResourceWarning, match="not closed"):
        forget()
        gc.collect()

    assert not running()


FORGETFUL = """
import os, sys, sparq
producer = sparq.connect(sys.argv[1]).producer()
for _ in range(3):
    producer.submit("t", b"x")
sys.exit(os.waitpid(child, 0)[1] if (child := os.fork()) else 0)
"""


def test_a_program_that_ends_too_soon_is_told_of_it(nowhere: str) -> None:
    """What it has begun to publish and closed nothing for; once, not by a forked child again."""
    command = [sys.executable, "-c", FORGETFUL, nowhere]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, timeout=20)

    assert 1 == ran.stderr.count("3 publishes still pending at exit")


def test_no_nsqd_is_an_error_that_says_why(nowhere: str) -> None:
    """A publish gives up in time, and tells what went wrong where."""
    with sparq.connect(nowhere, publish_timeout=0.3) as session, session.producer() as producer:
        with pytest.raises(PublishError, match=nowhere):
            producer.publish("t", b"x")
        for late in (
            lambda: producer.publish("t", b"x", timeout_seconds=0.05),
            lambda: producer.multi_publish("t", [b"x"], timeout_seconds=0.05),
            lambda: producer.publish_deferred("t", b"x", 1, timeout_seconds=0.05),
            lambda: producer.submit("t", b"x").result(),
        ):
            with pytest.raises(PublishError):
                late()
        assert 5 == producer.failed
        assert [nowhere] == list(producer.errors)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((), {}, ValueError, "nsqd_tcp_addresses or lookupd_http_addresses"),
        (("nonsense",), {}, ValueError, "nsqd_tcp_addresses: .*nonsense"),
        (("h:1",), {"lookupd_http_addresses": "ftp://x"}, ValueError, "lookupd_http_addresses: "),
        (("h:1",), {"max_in_fligth": 1}, TypeError, "max_in_flight"),
        (("h:1",), {"max_in_flight": -1}, ValueError, "max_in_flight"),
    ],
)
def test_mistakes_are_told_at_once(
    arguments: Any, options: Any, error: type[Exception], text: str
) -> None:
    """And leave no thread."""
    with pytest.raises(error, match=text):
        sparq.connect(*arguments, **options)

    assert not running()
