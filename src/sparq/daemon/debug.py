"""Go's debug routes, answered with Python's equivalents (docs/http.md lists them).

The paths are Go's. The answers are text: stacks as `module:function:line;...`, one per line with a
count, which flame graph tools can read directly.

1. Each answer is limited in time, stacks and lines. One profile runs at a time; another is refused.
2. A thread does the sampling, so the event loop goes on. Stopping the daemon ends the sampling.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import re
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import TypeVar

from aiohttp import web

from sparq.daemon.call import PLAIN_HEADER
from sparq.daemon.http import TEXT, Call, HttpError, Route
from sparq.daemon.routes import Handler
from sparq.daemon.token import without_secrets
from sparq.options.units import SECOND

SAMPLES_A_SECOND = 100
PROFILE_SECONDS_DEFAULT = 30.0
PROFILE_SECONDS_MAX = 120.0
DEPTH_MAX = 64
STACKS_MAX = 10_000
LINES_MAX = 200
TASKS_MAX = 1000
STALL_SECONDS_MIN = 0.001

_PATHS = ("cmdline", "profile", "symbol", "heap", "goroutine", "block", "threadcreate")
_Found = TypeVar("_Found")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NO_SNIFFING = {"Content-Type": TEXT, "X-Content-Type-Options": "nosniff"}


def stack_of(frame: FrameType | None) -> str:
    """Return a stack as one line, outermost function first."""
    names: list[str] = []
    while frame is not None and len(names) < DEPTH_MAX:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}:{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))


def counted(stacks: Counter[str]) -> str:
    """Format stacks with their counts, most frequent first."""
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common())


def sample(seconds: float, ended: threading.Event) -> Counter[str]:
    """Sample all other threads' stacks for `seconds` or until the event is set; blocks."""
    found: Counter[str] = Counter()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    me = threading.get_ident()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ended.wait(1 / SAMPLES_A_SECOND):
        for ident, frame in sys._current_frames().items():
            if ident != me and len(found) < STACKS_MAX:
                found[f"{names.get(ident, ident)};{stack_of(frame)}"] += 1
    return found


class LoopWatch:
    """Record the event loop's stack while it is blocked, in place of Go's block profile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self.stacks: Counter[str] = Counter()
        self._loop = loop
        self._stall_seconds = max(STALL_SECONDS_MIN, stall_seconds)
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._stall_seconds) and not self._loop.is_closed():
            answered = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop was closed a moment ago
                self._loop.call_soon_threadsafe(answered.set)
            if answered.wait(self._stall_seconds):
                continue
            frame = sys._current_frames().get(self._loop_thread)
            if len(self.stacks) < STACKS_MAX:
                self.stacks[stack_of(frame)] += 1
            # Wait until it ends: a stall counts once, however long it lasts.
            while not answered.wait(1) and not self._stopped.is_set():
                continue


class Debug:
    """The debug handlers of one daemon."""

    def __init__(self) -> None:
        self._busy = False
        self._watch: LoopWatch | None = None

    def routes(self) -> list[Route]:
        """Return the routes of every daemon."""
        handlers = {name: _page(getattr(self, name)) for name in _PATHS}
        routes = [Route("GET", "/debug/pprof/", _page(self.index), plain=True, private=True)]
        for name, handler in handlers.items():
            routes.append(Route("GET", f"/debug/pprof/{name}", handler, plain=True, private=True))
            if name == "symbol":
                routes.append(Route("POST", f"/debug/pprof/{name}", handler, plain=True))
        return routes

    def all_routes(self) -> list[Route]:
        """Return the routes of every daemon and those of nsqd only."""
        return [
            *self.routes(),
            Route("PUT", "/debug/setblockrate", self.set_block_rate, plain=True),
            Route("POST", "/debug/freememory", self.free_memory, plain=True),
        ]

    def index(self, _call: Call) -> str:
        """Return the list of debug paths."""
        return "".join(f"/debug/pprof/{name}\n" for name in _PATHS)

    def cmdline(self, _call: Call) -> str:
        """Return the command line, its words separated by NUL, without secrets."""
        return "\0".join(without_secrets(sys.orig_argv))

    def symbol(self, _call: Call) -> str:
        """Return Go's answer for "symbols exist", since stacks already contain names."""
        return "num_symbols: 1\n"

    async def profile(self, call: Call) -> str:
        """Sample the threads' stacks for the next `seconds`."""
        seconds = _seconds(call) or PROFILE_SECONDS_DEFAULT
        return counted(await self._alone(lambda ended: sample(seconds, ended)))

    async def heap(self, call: Call) -> str:
        """Return objects by type; with `seconds`, memory allocated meanwhile and not freed."""
        seconds = _seconds(call)
        if not seconds:
            return await self._alone(lambda _ended: objects_by_type())
        return await self._alone(lambda ended: allocations(seconds, ended))

    def goroutine(self, _call: Call) -> str:
        """Return the stacks of all threads and of the loop's tasks."""
        return "\n".join((*thread_stacks(), *task_stacks()))

    def block(self, _call: Call) -> str:
        """Return where the loop was blocked since `setblockrate`."""
        return counted(self._watch.stacks) if self._watch is not None else ""

    def threadcreate(self, _call: Call) -> str:
        """Return the names and ids of the threads."""
        threads = threading.enumerate()
        return "".join(f"{thread.name} {thread.native_id}\n" for thread in threads)

    def set_block_rate(self, call: Call) -> None:
        """Record where the loop is blocked for longer than `rate` ns; 0: stop recording."""
        text = call.query.get("rate", "")
        if not _INTEGER.fullmatch(text):
            reason = f'strconv.Atoi: parsing "{text}": invalid syntax'
            raise HttpError(400, f"invalid block rate : {reason}")
        self.stop()
        if int(text) > 0:
            self._watch = LoopWatch(asyncio.get_running_loop(), int(text) / SECOND)

    async def free_memory(self, _call: Call) -> None:
        """Collect garbage, and return free memory to the system."""
        await asyncio.to_thread(free_memory)

    def stop(self) -> None:
        """Stop watching the loop."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    async def _alone(self, record: Callable[[threading.Event], _Found]) -> _Found:
        # tracemalloc is one for the whole process: the end of one profile would stop another's.
        if self._busy:
            raise HttpError(500, "Could not enable profiling: another profile is in progress")
        self._busy = True
        ended = threading.Event()
        try:
            return await asyncio.to_thread(record, ended)
        finally:
            ended.set()
            self._busy = False


def _page(handler: Callable[[Call], str | Awaitable[str]]) -> Handler:
    """Return the handler with the header that Go adds to the pages below /debug/pprof/."""

    async def page(call: Call) -> web.Response:
        found = handler(call)
        text = found if isinstance(found, str) else await found
        return web.Response(text=text, headers={**PLAIN_HEADER, **_NO_SNIFFING})

    return page


def _seconds(call: Call) -> float:
    """Return the parameter `seconds`, limited; 0 if it is missing or not a positive number."""
    text = call.query.get("seconds", "")
    number = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text)
    return min(float(text), PROFILE_SECONDS_MAX) if number else 0.0


def objects_by_type() -> str:
    """Return how many objects of each type the collector tracks, most frequent first."""
    kinds = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    lines = [f"{count} {kind}\n" for kind, count in kinds.most_common(LINES_MAX)]
    return f"{sys.getallocatedblocks()} allocated blocks\n{''.join(lines)}"


def allocations(seconds: float, ended: threading.Event) -> str:
    """Return the bytes and blocks allocated within `seconds` and still in use, by source line.

    Waits that long.
    """
    tracemalloc.start()
    try:
        ended.wait(seconds)
        found = tracemalloc.take_snapshot().statistics("lineno")
    finally:
        tracemalloc.stop()
    return "".join(f"{s.size} {s.count} {s.traceback}\n" for s in found[:LINES_MAX])


def thread_stacks() -> Iterator[str]:
    """Yield each thread with its stack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield _stack_text(f"thread {names.get(ident, ident)}", stack_of(frame))


def task_stacks() -> Iterator[str]:
    """Yield each task of the running loop, and where it waits."""
    for task in list(asyncio.all_tasks())[:TASKS_MAX]:
        frames = task.get_stack(limit=DEPTH_MAX)
        places = [stack_of(frame).rpartition(";")[2] for frame in frames]
        yield _stack_text(f"task {task.get_name()}", ";".join(places))


def _stack_text(who: str, stack: str) -> str:
    return "\n".join([f"{who}:", *(f"    {place}" for place in stack.split(";")), ""])


def free_memory() -> None:
    """Collect garbage, and let the C library return free memory, if it can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
