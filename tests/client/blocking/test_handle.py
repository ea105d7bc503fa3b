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


def test_an_interrupted_close_still_closes_the_producer(closed_address: str) -> None:
    """Ctrl-C ends the wait in a producer's ``close``, but the producer still closes."""
    with sparq.connect(closed_address, stop_timeout=0.3) as session:
        producer = session.producer()
        future = producer.submit("t", b"x")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            producer.close()

        assert isinstance(future.exception(10), PublishError | ClosedError)
        assert 0 == producer.under_way


def test_a_session_closes_its_producers_concurrently(closed_address: str) -> None:
    """A session closes its producers concurrently: four of them take one ``stop_timeout``."""
    with sparq.connect(closed_address, stop_timeout=1.0) as session:
        futures = [session.producer().submit("t", b"x") for _ in range(4)]
        before = time.monotonic()

    assert time.monotonic() - before < 3.0  # one after the other, they would take four seconds
    assert all(future.exception() for future in futures)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_pickling_or_copying_parts_of_a_session_raises(
    way: Callable[[Any], Any], closed_address: str
) -> None:
    """Pickling or copying, as a worker pool or Spark does, raises TypeError with advice."""
    with sparq.connect(closed_address) as session:
        for each in (session, session.producer(), session.consumer("t", "c")):
            with pytest.raises(TypeError, match="make a session there"):
                way(each)


def test_the_blocking_classes_have_the_public_names_of_the_asyncio_classes() -> None:
    """The blocking classes have every public name of the asyncio classes, except four.

    ``publish_nowait`` is named ``submit`` there; the four (`awaited`) need an event loop.
    """
    awaited = {"start", "stop", "join", "drain"}
    pairs = [(Consumer, BlockingConsumer), (Producer, BlockingProducer), (Batch, BlockingBatch)]
    for there, here in pairs:
        names = {
            name.removesuffix("_nowait").replace("publish", "submit") if "_nowait" in name else name
            for name in dir(there)
        }
        assert set() == {each for each in names if each[0] != "_"} - set(dir(here)) - awaited
