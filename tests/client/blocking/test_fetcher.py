"""client.blocking.fetcher: a wait that times out loses no items."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator

import pytest

import sparq
from sparq.client import ClosedError
from sparq.client.blocking.fetcher import Fetcher
from sparq.client.blocking.loop_thread import LoopThread
from tests.support.shared_daemons import SharedDaemons


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """An event loop in a thread."""
    made = LoopThread()
    yield made
    made.close()


class Source:
    """A source that yields one number for each ``yield_one``."""

    def __init__(self, thread: LoopThread) -> None:
        self.ended = False
        self._gate = thread.ask(asyncio.Semaphore)
        self._thread = thread
        thread.call(self._gate.acquire)

    def yield_one(self) -> None:
        """Let the source yield one more number."""
        self._thread.ask(self._gate.release)

    async def numbers(self) -> AsyncGenerator[int, None]:
        """Yield 0, 1 and 2."""
        try:
            for number in range(3):
                await self._gate.acquire()
                yield number
        finally:
            self.ended = True


def test_a_wait_that_times_out_loses_no_item(thread: LoopThread) -> None:
    """After a timeout, ``next`` returns the item waited for; after the last item, None."""
    source = Source(thread)
    feed = Fetcher(thread, source.numbers())
    with pytest.raises(TimeoutError):
        feed.next(time.monotonic())
    for _ in range(3):
        source.yield_one()

    assert [0, 1, 2, None, None] == [feed.next(time.monotonic() + 10) for _ in range(5)]
    assert source.ended


def test_end_returns_an_item_that_was_fetched_but_not_read(thread: LoopThread) -> None:
    """``end`` closes the source, and returns an item that was fetched but not read, or None."""
    for given, expected in ((False, None), (True, 0)):
        source = Source(thread)
        feed = Fetcher(thread, source.numbers())
        with pytest.raises(TimeoutError):
            feed.next(time.monotonic())
        if given:
            source.yield_one()
            thread.call(asyncio.sleep, 0.01)

        assert expected == thread.call(feed.end)
        assert source.ended


def test_an_error_of_the_source_is_raised_by_next(thread: LoopThread) -> None:
    """``next`` raises the source's error, or ClosedError after the loop is closed."""

    async def fail() -> AsyncGenerator[int, None]:
        raise KeyError("why")
        yield 0

    feed = Fetcher(thread, fail())
    with pytest.raises(KeyError, match="why"):
        feed.next()
    assert thread.call(feed.end) is None
    feed = Fetcher(thread, Source(thread).numbers())
    thread.close()
    with pytest.raises(ClosedError):
        feed.next()


def test_a_batch_that_arrives_as_the_loop_ends_is_requeued(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that arrives just as the loop ends is requeued, and nsqd delivers it again."""
    topic, nsqd = shared_daemons.make("feed"), shared_daemons.nsqds[0]
    nsqd.post(f"/pub?topic={topic}", b"x")
    waiting = Fetcher.next

    def late_next(self: Fetcher[object], deadline: float | None = None) -> object:
        """Fetch the item, then time out as if it had arrived too late."""
        found = waiting(self, deadline)
        monkeypatch.undo()
        self._fetched = self._thread.submit(asyncio.sleep, 0, found)
        self._thread.wait(self._fetched)
        raise TimeoutError

    with sparq.connect(nsqd.tcp) as session, session.consumer(topic, "c") as consumer:
        monkeypatch.setattr(Fetcher, "next", late_next)
        assert [] == list(consumer.batches(1, 0))
        again = consumer.receive(10)
        again.finish()

        assert (b"x", 2) == (again.body, again.attempts)
