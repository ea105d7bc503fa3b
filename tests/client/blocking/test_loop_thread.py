"""client.blocking.loop_thread: calls, posts, interruptions, closing and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from sparq.client.blocking.loop_thread import LoopThread
from tests.support.waiting import let_all_run, wait_for


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop thread, closed after the test."""
    made = LoopThread()
    yield made
    made.close()


async def add(one: int, other: int) -> int:
    await let_all_run(1)
    return one + other


def test_an_interrupted_wait_cancels_what_it_waited_for(thread: LoopThread) -> None:
    """Ctrl-C raises KeyboardInterrupt in the caller and cancels the coroutine."""
    ends: list[str] = []

    async def endless() -> None:
        ends.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    def interrupt() -> None:
        wait_for(lambda: ends)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        thread.call(endless)
    other.join()

    wait_for(lambda: ends == ["begun", "cancelled"])
    assert 3 == thread.call(add, 1, 2)


def test_call_on_the_loops_own_thread_raises(thread: LoopThread) -> None:
    """``call`` on the loop's own thread would deadlock, so it raises RuntimeError."""

    async def inside() -> None:
        thread.call(add, 1, 2)

    with pytest.raises(RuntimeError, match="own thread"):
        thread.call(inside)


def test_code_that_interrupts_a_post_may_post(thread: LoopThread) -> None:
    """A signal handler or finalizer that interrupts ``post`` may itself post and call."""
    done: list[int] = []

    def post_within() -> None:
        with thread._lock:  # the state of a post that is interrupted
            thread.post(done.append, 1)
            done.append(thread.call(add, 1, 2))

    posting = threading.Thread(target=post_within, daemon=True)
    posting.start()
    posting.join(10)

    assert [1, 3] == done


@pytest.mark.parametrize("way", ["call", "submit"])
def test_a_signal_handler_may_call_where_it_interrupts_a_wait(
    thread: LoopThread, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may make a blocking call although the wait that it interrupts holds a lock.

    The loop's thread sets the outcome of that wait, and must not wait for the lock.
    """
    allocate = threading._allocate_lock  # type: ignore[attr-defined] # called in Condition.wait
    done: list[int] = []

    async def sleep(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 1

    def interrupted_within() -> object:
        monkeypatch.setattr(threading, "_allocate_lock", allocate)
        signal.raise_signal(signal.SIGUSR1)
        return allocate()

    def give_up(*_: object) -> None:
        raise TimeoutError("deadlock")

    usual = signal.signal(signal.SIGUSR1, lambda *_: done.append(thread.call(sleep, 0.1)))
    usual_alarm = signal.signal(signal.SIGALRM, give_up)
    monkeypatch.setattr(threading, "_allocate_lock", interrupted_within)
    signal.alarm(10)
    try:
        found = thread.call(sleep, 0.05) if way == "call" else thread.submit(sleep, 0.05).result()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, usual)
        signal.signal(signal.SIGALRM, usual_alarm)

    assert (1, [1]) == (found, done)


def test_patched_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a library has replaced Python's threads, no loop thread is made: it would hang."""
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: 0)
    with pytest.raises(RuntimeError, match=r"'tests' has replaced.*patch_all\(thread=False\)"):
        LoopThread()
