"""An event loop on a thread of its own, for programs that have none or must not share theirs.

1. What runs on it is asked for by ``call`` (waits for the answer) or ``post`` (does not wait). Both
   are taken in the order in which one thread gave them.
2. Many posts cost one wake-up of the loop: they are done together.
3. A ``call`` that is interrupted (Ctrl-C) cancels what it waited for: nothing is left that nobody
   knows of. What was given to ``submit`` goes on, whoever waits for it.
4. ``close`` leaves no thread. One that is forgotten is ended when the garbage is collected or the
   program ends, with a ``ResourceWarning``; it never holds up that end.
5. In a forked child the thread is not there: every use says so, and ``close`` does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, ParamSpec, TypeVar

import uvloop

from sparq.client.errors import ClosedError

T = TypeVar("T")
P = ParamSpec("P")

CLOSED: Final = "the session is closed"
FORKED: Final = (
    "this session belongs to the process that made it: in a forked process, make a new one"
)
INSIDE: Final = "a call from the session's own thread would wait for itself"
FORGOTTEN: Final = "a session was not closed: use it in a with block, or call its close()"

_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_begun: set[asyncio.Future[Any]] = set()
"""What ``begin`` has begun: a loop itself holds tasks only weakly."""


class LoopThread:
    """A running loop; others speak to it from their threads."""

    def __init__(self) -> None:
        self._unusable = ""
        # Reentrant: the collector of garbage, or a handler of signals, may come in between.
        self._lock = threading.RLock()
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waking = False
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # Not a method: the thread must not keep alive what ends it when it is forgotten.
        self._thread = threading.Thread(
            target=_run, args=(started,), name="sparq session", daemon=True
        )
        self._thread.start()
        self._loop, stop = started.result()
        self._ending = (self._loop, stop, self._thread, os.getpid())
        self._forgotten = weakref.finalize(self, _forgotten, *self._ending)
        _threads.add(self)

    def call(self, work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Await ``work(*arguments, **named)`` on the loop.

        Raises:
            ClosedError: the loop has ended, or is another process's.
            RuntimeError: this is the loop's own thread.
        """
        self._check_outside()
        with self._lock:
            self.check()
            coroutine = _await(work, *arguments, **named)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def ask(self, question: Callable[[], T]) -> T:
        """What ``question()`` returns on the loop; the same errors as for ``call``."""

        async def answer() -> T:
            return question()

        return self.call(answer)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have ``function(*arguments)`` called on the loop, soon.

        Raises:
            ClosedError: the loop has ended, or is another process's.
        """
        with self._lock:
            self.check()
            self._posted.append((function, arguments))
            if not self._waking:
                self._wake()

    def submit(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Begin to await ``work(*arguments)`` on the loop; the future is its outcome.

        Raises:
            ClosedError: the loop has ended, or is another process's.
        """
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()
        self.post(begin, work, arguments, outcome)
        return outcome

    def wait(self, outcome: Future[T], seconds: float | None = None) -> T:
        """What comes of something submitted; who gives up waiting for it does not end it.

        Raises:
            TimeoutError: nothing has come in time.
            RuntimeError: this is the loop's own thread.
        """
        self._check_outside()
        return outcome.result(seconds)

    def close(self) -> None:
        """End the loop, whatever still runs on it, and its thread; harmless when it has ended."""
        with self._lock:  # what was given before is begun before the end
            self._unusable = self._unusable or CLOSED
        self._forgotten.detach()
        _end(*self._ending)

    def disown(self) -> None:
        """This is a forked child, where the thread is not."""
        self._unusable = FORKED
        self._lock = threading.RLock()  # another thread may have held it when the process forked
        self._forgotten.detach()

    def check(self) -> None:
        """Nothing, while the loop can be used.

        Raises:
            ClosedError: it has ended, or is another process's.
        """
        if self._unusable:
            raise ClosedError(self._unusable)

    def is_current(self) -> bool:
        """Whether this is the loop's own thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def _check_outside(self) -> None:
        if self.is_current():
            raise RuntimeError(INSIDE)

    def _wake(self) -> None:
        try:
            self._waking = True
            self._loop.call_soon_threadsafe(self._do_posted)
        except BaseException:  # Ctrl-C may come in between: the next post wakes it then
            self._waking = False
            raise

    def _do_posted(self) -> None:
        # First: what is posted from now on may have missed this round.
        self._waking = False
        posted = self._posted
        try:
            while posted:
                function, arguments = posted.popleft()
                function(*arguments)
        finally:
            if posted:  # a bug in one is no harm to the others
                self._loop.call_soon(self._do_posted)


async def _await(work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
    return await work(*arguments, **named)


def begin(
    work: Callable[..., Awaitable[T]], arguments: tuple[Any, ...], outcome: Future[T]
) -> None:
    """On the loop: begin to await ``work(*arguments)``; what comes of it is the future's."""
    task = asyncio.ensure_future(_await(work, *arguments))
    _begun.add(task)
    task.add_done_callback(_begun.discard)
    task.add_done_callback(lambda done: _settle(done, outcome))


def _settle(task: asyncio.Future[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(ClosedError(CLOSED))
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _run(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """The thread: a loop until it is told to stop; what runs then is cancelled."""

    async def main() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    # Signals are the program's: one that came to this thread would not wake who waits in another.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _end(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread, owner: int
) -> None:
    if os.getpid() != owner or not thread.is_alive():
        return
    with contextlib.suppress(RuntimeError):  # it has ended since
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
