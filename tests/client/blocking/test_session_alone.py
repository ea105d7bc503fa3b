"""sparq.connect without an nsqd: what it says then, and what it leaves."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import sparq
from sparq.client import PublishError
from tests.servers import free_port


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Expected losses need no lines."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def running() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "sparq session"]


def test_importing_sparq_loads_next_to_nothing() -> None:
    """A script that never connects pays for no event loop and no HTTP client."""
    asked = "import sys, sparq; print([m for m in ('asyncio', 'aiohttp') if m in sys.modules])"

    assert b"[]\n" == subprocess.check_output([sys.executable, "-c", asked])


def test_ctrl_c_in_a_publish() -> None:
    """A publish that waits for an nsqd is interrupted; the block is left, and no thread stays."""
    before = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        sparq.connect(f"127.0.0.1:{free_port()}") as session,
        session.producer() as producer,
    ):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        producer.publish("t", b"x")

    assert not running()
    assert time.monotonic() - before < 10


def test_no_nsqd_is_an_error_that_says_why() -> None:
    """A publish gives up in time, and tells what went wrong where."""
    nowhere = f"127.0.0.1:{free_port()}"
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
        (("nonsense",), {}, ValueError, "nonsense"),
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
