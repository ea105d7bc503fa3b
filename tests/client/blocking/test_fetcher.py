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
    """A source that yields one number for each ``give``."""

    def __init__(self, thread: LoopThread) -> None:
        self.ended = False
        self._gate = thread.ask(asyncio.Semaphore)
        self._thread = thread
        thread.call(self._gate.acquire)

    def give(self) -> None:
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


def test_a_wait_that_is_given_up_loses_nothing(thread: LoopThread) -> None:
    """After a timeout, ``next`` returns the item waited for; after the last item, None."""
    source = Source(thread)
    feed = Fetcher(thread, source.numbers())
    with pytest.raises(TimeoutError):
        feed.next(time.monotonic())
    for _ in range(3):
        source.give()

    assert [0, 1, 2, None, None] == [feed.next(time.monotonic() + 10) for _ in range(5)]
    assert source.ended


def test_closing_tells_what_was_fetched_and_never_asked_for(thread: LoopThread) -> None:
    """``end`` closes the source, and returns an item that was fetched but not read, or None."""
    for given, expected in ((False, None), (True, 0)):
        source = Source(thread)
        feed = Fetcher(thread, source.numbers())
        with pytest.raises(TimeoutError):
            feed.next(time.monotonic())
        if given:
            source.give()
            thread.call(asyncio.sleep, 0.01)

        assert expected == thread.call(feed.end)
        assert source.ended


def test_an_error_of_the_source_is_told(thread: LoopThread) -> None:
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


def test_what_a_loop_over_batches_had_fetched_at_its_end_comes_again(
    shared_daemons: SharedDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that arrives just as the loop ends is requeued, and nsqd delivers it again."""
    topic, nsqd = shared_daemons.make("feed"), shared_daemons.nsqds[0]
    nsqd.post(f"/pub?topic={topic}", b"x")
    waiting = Fetcher.next

    def too_late(self: Fetcher[object], deadline: float | None = None) -> object:
        """Fetch the item, then time out as if it had arrived too late."""
        found = waiting(self, deadline)
        monkeypatch.undo()
        self._fetched = self._thread.submit(asyncio.sleep, 0, found)
        self._thread.wait(self._fetched)
        raise TimeoutError

    with sparq.connect(nsqd.tcp) as session, session.consumer(topic, "c") as consumer:
        monkeypatch.setattr(Fetcher, "next", too_late)
        assert [] == list(consumer.batches(1, 0))
        again = consumer.receive(10)
        again.finish()

        assert (b"x", 2) == (again.body, again.attempts)
