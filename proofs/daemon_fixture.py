"""Shared parts of the proofs: starts an nsqd, runs actors against it, waits until it is drained.

1. The daemon is sparq's nsqd, or a control: a module that switches a safeguard off and runs nsqd.
2. Actors work while their block runs; an actor that failed makes the block fail.
3. Every wait has a condition and a deadline.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import NsqdServer, spawn_nsqd

from proofs.actors import Actor

ROOT = Path(__file__).parent.parent
NSQD = "sparq.nsqd"
POLL_SECONDS = 0.02
DRAIN_SECONDS = 120.0


def python_path() -> str:
    """Return the PYTHONPATH for a process that runs a module of `proofs`."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class RunningActors:
    """Actors that work while the block runs."""

    def __init__(self, *actors: Actor) -> None:
        self.actors = actors
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self.tasks = [asyncio.create_task(actor.live()) for actor in self.actors]

    async def __aexit__(self, *_: object) -> None:
        ended = [task for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task in ended:
            task.result()


def started(
    folder: Path, module: str = NSQD, flags: Sequence[str] = (), prefix: tuple[str, ...] = ()
) -> NsqdServer:
    """Start this module's nsqd with its data in `folder`; `prefix` is put before its command."""
    if module == NSQD:
        return spawn_nsqd(folder, *flags, prefix=prefix)
    os.environ["PYTHONPATH"] = python_path()
    server = NsqdServer(module, folder, (f"--data-path={folder}", *flags), prefix)
    server.start()
    return server


@contextmanager
def data_folder(keep: Path | None) -> Iterator[Path]:
    """Yield a temporary folder, which is removed afterwards, or create and yield `keep`."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="sparq-proof-") as folder:
            yield Path(folder)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until the condition holds.

    Raises:
        AssertionError: it did not hold in time; the message contains `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} in {seconds:.0f} s"
        time.sleep(POLL_SECONDS)


def is_drained(server: NsqdServer, topic: str, channels: Iterable[str]) -> bool:
    """Return whether these channels have no waiting, in-flight or deferred messages."""
    waiting = ("depth", "in_flight_count", "deferred_count")
    figures = [server.channel(topic, channel) for channel in channels]
    return all(figure and not any(figure[key] for key in waiting) for figure in figures)
