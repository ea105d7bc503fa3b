"""Go's debug routes, answered with Python's equivalents (docs/http.md lists them).

The answers are text: stacks as `module:function:line;...`, one per line with a count, which flame
graph tools can read directly.

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
from collections.abc import Callable
from functools import partial
from types import FrameType

from sparq.daemon.http import Call, HttpError, Route
from sparq.options.units import SECOND

SAMPLES_A_SECOND = 100
PROFILE_SECONDS_DEFAULT = 30.0
PROFILE_SECONDS_MAX = 120.0
DEPTH_MAX = 64
STACKS_MAX = 10_000
LINES_MAX = 200
TASKS_MAX = 1000
STALL_SECONDS_MIN = 0.001

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def stack_of(frame: FrameType | None) -> str:
    """Return a stack as one line, outermost function first."""
    names: list[str] = []
    while frame is not None and len(names) < DEPTH_MAX:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}:{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))


def stacks_of_threads() -> list[tuple[str, str]]:
    """Return the name and the stack of each thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return [(str(names.get(ident, ident)), stack_of(frame)) for ident, frame in frames]


def counted(stacks: Counter[str]) -> str:
    """Format stacks with their counts, most frequent first."""
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common())


def sample(seconds: float, ended: threading.Event) -> str:
    """Sample all other threads' stacks for `seconds` or until the event is set; blocks."""
    found: Counter[str] = Counter()
    me = threading.current_thread().name
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ended.wait(1 / SAMPLES_A_SECOND):
        for name, stack in stacks_of_threads():
            if name != me and len(found) < STACKS_MAX:
                found[f"{name};{stack}"] += 1
    return counted(found)


class LoopWatch:
    """Record the event loop's stack while it is blocked, in place of Go's block profile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self.stacks: Counter[str] = Counter()
        self._loop = loop
        self._stall_seconds = max(STALL_SECONDS_MIN, stall_seconds)
        self._loop_thread = threading.get_ident()
        self.stopped = threading.Event()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self.stopped.wait(self._stall_seconds) and not self._loop.is_closed():
            answered = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop was closed a moment ago
                self._loop.call_soon_threadsafe(answered.set)
            if answered.wait(self._stall_seconds):
                continue
            frame = sys._current_frames().get(self._loop_thread)
            if len(self.stacks) < STACKS_MAX:
                self.stacks[stack_of(frame)] += 1
            # Wait until it ends: a stall counts once, however long it lasts.
            while not answered.wait(1) and not self.stopped.is_set():
                continue


class Debug:
    """The debug handlers of one daemon."""

    def __init__(self) -> None:
        self._busy = False
        self._watch: LoopWatch | None = None

    def routes(self, *, of_nsqd: bool = False) -> list[Route]:
        """Return the routes of every daemon, and with `of_nsqd` those of nsqd only."""
        pages = {
            "profile": self.profile,
            "heap": self.heap,
            "goroutine": lambda _call: stacks_of_all(),
            # Where the loop was blocked since `setblockrate`.
            "block": lambda _call: counted(self._watch.stacks) if self._watch else "",
        }
        index = "".join(f"/debug/pprof/{name}\n" for name in pages)
        found = [
            Route("GET", f"/debug/pprof/{name}", handler, plain=True)
            for name, handler in {"": lambda _call: index, **pages}.items()
        ]
        if of_nsqd:
            found.append(Route("PUT", "/debug/setblockrate", self.set_block_rate, plain=True))
            found.append(Route("POST", "/debug/freememory", self.free_memory, plain=True))
        return found

    async def profile(self, call: Call) -> str:
        """Sample the threads' stacks for the next `seconds`."""
        return await self._alone(partial(sample, _seconds(call) or PROFILE_SECONDS_DEFAULT))

    async def heap(self, call: Call) -> str:
        """Return objects by type; with `seconds`, memory allocated meanwhile and not freed."""
        seconds = _seconds(call)
        return await self._alone(partial(allocations, seconds) if seconds else objects_by_type)

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
        """Collect garbage, and let the C library return free memory to the system, if it can."""
        await asyncio.to_thread(gc.collect)
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            await asyncio.to_thread(trim, 0)

    def stop(self) -> None:
        """Stop watching the loop."""
        if self._watch is not None:
            self._watch.stopped.set()
            self._watch = None

    async def _alone(self, record: Callable[[threading.Event], str]) -> str:
        """Run a profile in a thread; the event tells it to end."""
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


def _seconds(call: Call) -> float:
    """Return the parameter `seconds`, limited; 0 if it is missing or not a positive number."""
    text = call.query.get("seconds", "")
    return min(float(text), PROFILE_SECONDS_MAX) if _SECONDS.fullmatch(text) else 0.0


def objects_by_type(_ended: threading.Event) -> str:
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


def stacks_of_all() -> str:
    """Return the stacks of all threads, and the places where the running loop's tasks wait."""
    found = [(f"thread {name}", stack) for name, stack in stacks_of_threads()]
    for task in list(asyncio.all_tasks())[:TASKS_MAX]:
        frames = task.get_stack(limit=DEPTH_MAX)
        places = [stack_of(frame).rpartition(";")[2] for frame in frames]
        found.append((f"task {task.get_name()}", ";".join(places)))
    indented = [(who, stack.replace(";", "\n    ")) for who, stack in found]
    return "\n".join(f"{who}:\n    {stack}\n" for who, stack in indented)
