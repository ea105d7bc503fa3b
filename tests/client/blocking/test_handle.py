"""client.blocking.handle: delegation to the asyncio classes, and closing."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import sparq
from sparq.client import (
    Batch,
    BlockingBatch,
    BlockingConsumer,
    BlockingProducer,
    ClosedError,
    Consumer,
    Producer,
    PublishError,
)


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


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_nothing_of_a_session_goes_to_another_process(
    way: Callable[[Any], Any], nowhere: str
) -> None:
    """As a worker of a pool or of Spark would take it along: it is told what to do instead."""
    with sparq.connect(nowhere) as session:
        for each in (session, session.producer(), session.consumer("t", "c")):
            with pytest.raises(TypeError, match="make a session there"):
                way(each)


def test_both_apis_can_do_the_same() -> None:
    """What is there is here by its name, or submitted; but for what only an event loop needs."""
    awaited = {"start", "stop", "join", "drain"}
    pairs = [(Consumer, BlockingConsumer), (Producer, BlockingProducer), (Batch, BlockingBatch)]
    for there, here in pairs:
        names = {
            name.removesuffix("_nowait").replace("publish", "submit") if "_nowait" in name else name
            for name in dir(there)
        }
        assert set() == {each for each in names if each[0] != "_"} - set(dir(here)) - awaited
