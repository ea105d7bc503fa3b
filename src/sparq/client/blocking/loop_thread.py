"""An event loop on its own thread, for programs that have none or must not share theirs.

1. ``call`` runs work on the loop and waits for the result; ``post`` does not wait. Both keep the
   order in which one thread calls them.
2. An interrupted ``call`` (Ctrl-C) cancels its work, so that no work without an owner is left. Work
   given to ``submit`` goes on, even if a wait for it is interrupted.
3. The loop's thread waits for no lock that another thread can hold. So a signal handler may use a
   session, even if it interrupts a call of the same session.
4. After ``close`` the thread has ended. Without ``close`` it ends when its object is collected or
   the program exits, with a ``ResourceWarning``; it never delays the exit.
5. A forked child does not have the thread: every use raises ``ClosedError``, and ``close`` does
   nothing.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import inspect
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

import uvloop

from sparq.client.errors import ClosedError

T = TypeVar("T")

CLOSED: Final = "the session is closed"
FORKED: Final = (
    "this session belongs to the process that made it: in a forked process, make a new one"
)
INSIDE: Final = "blocking call from the session's own thread: it would deadlock"
PATCHED: Final = (
    "{!r} has replaced Python's threads, and a session cannot run on its thread under them: "
    "call gevent's monkey.patch_all(thread=False), or use the session in another process"
)
FORGOTTEN: Final = "a session was not closed: use it in a with block, or call its close()"

LOCK_SECONDS: Final = 0.001
"""Time for a future's lock, and until the next attempt; usually it is held for microseconds."""

_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_tasks: dict[Future[Any], asyncio.Task[Any]] = {}
"""The running tasks by their outcomes; the loop itself holds only weak references to tasks."""


class LoopThread:
    """A running event loop that other threads can call.

    Raises:
        RuntimeError: a library such as gevent has replaced Python's threads.
    """

    def __init__(self) -> None:
        if not inspect.isbuiltin(_thread.start_new_thread):
            library = _thread.start_new_thread.__module__.partition(".")[0]
            raise RuntimeError(PATCHED.format(library))
        self._unusable = ""
        # Held to post, so that what is posted before `close` still runs. Reentrant: the garbage
        # collector or a signal handler may run while it is held.
        self._lock = threading.RLock()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # Not a method: the thread must not keep this object alive, whose finalizer ends it.
        self._thread = threading.Thread(
            target=_run, args=(started,), name="sparq session", daemon=True
        )
        self._thread.start()
        self._loop, stop = started.result()
        self._ending = (self._loop, stop, self._thread, os.getpid())
        self._forgotten = weakref.finalize(self, _forgotten, *self._ending)
        _threads.add(self)

    def call(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call ``work(*arguments, **named)`` on the loop, await what it returns if that is needed.

        Raises:
            ClosedError: the loop has ended, or belongs to another process.
            RuntimeError: the caller is on the loop's own thread.
        """
        outcome: Future[Any] = Future()
        try:
            self.post(_begin, partial(work, *arguments, **named), outcome)
            return self.wait(outcome)
        except BaseException:
            self.cancel(outcome)  # it may have been interrupted
            raise

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call ``function(*arguments)`` on the loop soon, without waiting.

        Raises:
            ClosedError: the loop has ended, or belongs to another process.
        """
        with self._lock:
            self.check()
            self._loop.call_soon_threadsafe(function, *arguments)

    def submit(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Start ``work(*arguments)`` on the loop, as ``call`` does; the future carries the result.

        Raises:
            ClosedError: the loop has ended, or belongs to another process.
        """
        outcome: Future[T] = Future()
        self.post(_begin, partial(work, *arguments), outcome)
        return outcome

    def wait(self, outcome: Future[T], seconds: float | None = None) -> T:
        """Return the result of submitted work; an interrupted wait does not cancel the work.

        Raises:
            TimeoutError: there is no result within ``seconds``.
            RuntimeError: the caller is on the loop's own thread.
        """
        if self.is_current():
            raise RuntimeError(INSIDE)
        return outcome.result(seconds)

    def cancel(self, outcome: Future[Any]) -> None:
        """Cancel submitted work, unless it is done; its future then raises ``ClosedError``."""
        with contextlib.suppress(ClosedError):
            self.post(_cancel, outcome)

    def close(self) -> None:
        """Cancel all work, then end the loop and its thread; a second call does nothing."""
        with self._lock:  # work given before is still started
            self._unusable = self._unusable or CLOSED
        self._forgotten.detach()
        _end(*self._ending)

    def disown(self) -> None:
        """Mark as unusable: this is a forked child, which does not have the thread."""
        self._unusable = FORKED
        self._lock = threading.RLock()  # another thread may have held it when the process forked
        self._forgotten.detach()

    def check(self) -> None:
        """Check that the loop can be used.

        Raises:
            ClosedError: the loop has ended, or belongs to another process.
        """
        if self._unusable:
            raise ClosedError(self._unusable)

    def is_current(self) -> bool:
        """Whether the caller is on the loop's own thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread


def _begin(work: Callable[[], Any], outcome: Future[Any]) -> None:
    """On the loop: start ``work()``; ``outcome`` carries the result."""

    async def task() -> Any:
        result = work()
        return await result if inspect.isawaitable(result) else result

    def done(task: asyncio.Task[Any]) -> None:
        del _tasks[outcome]
        if task.cancelled():
            when_unlocked(outcome, outcome.set_exception, ClosedError(CLOSED))
        elif (error := task.exception()) is not None:
            when_unlocked(outcome, outcome.set_exception, error)
        else:
            when_unlocked(outcome, outcome.set_result, task.result())

    _tasks[outcome] = asyncio.ensure_future(task())
    _tasks[outcome].add_done_callback(done)


def _cancel(outcome: Future[Any]) -> None:
    if outcome in _tasks:
        _tasks[outcome].cancel()


def when_unlocked(future: Future[Any], function: Callable[..., object], *arguments: Any) -> None:
    """On the loop: call a function that takes a future's lock, as soon as no thread holds it.

    A signal handler may have interrupted the thread that holds it, and wait for this loop.
    """
    if future._condition.acquire(timeout=LOCK_SECONDS):
        try:
            function(*arguments)
        finally:
            future._condition.release()
    else:
        loop = asyncio.get_running_loop()
        loop.call_later(LOCK_SECONDS, when_unlocked, future, function, *arguments)


def _run(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """Run the loop on this thread until ``stop`` is set, then cancel all remaining tasks."""

    async def main() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    # Signals are left to other threads: one delivered here would not interrupt a wait elsewhere.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _end(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread, owner: int
) -> None:
    if os.getpid() != owner or not thread.is_alive():
        return
    with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
        loop.call_soon_threadsafe(stop.set)
    if threading.current_thread() is not thread:
        thread.join()


def _forgotten(*ending: Any) -> None:
    _end(*ending)
    warnings.warn(FORGOTTEN, ResourceWarning, stacklevel=3)


def _disown_all() -> None:
    for thread in list(_threads):
        thread.disown()


os.register_at_fork(after_in_child=_disown_all)
