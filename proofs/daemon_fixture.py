"""What a proof needs around an nsqd: the daemon itself, its actors at work, and the way to its end.

1. A daemon is sparq's own, or a module of `proofs` that switches a guard off and then runs it.
2. Actors work for as long as their block lasts; an actor that failed fails the block.
3. Waiting is for a condition, with a deadline.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import NsqdServer, spawn_nsqd

from proofs.witness import Actor

ROOT = Path(__file__).parent.parent
NSQD = "sparq.nsqd"
POLL_SECONDS = 0.02
DRAIN_SECONDS = 120.0


def python_path() -> str:
    """The search path of a process that runs a module of `proofs`."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Crew:
    """Actors at work for as long as the block lasts."""

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
    """An nsqd of this module with its data in `folder`, under `prefix` if that is given."""
    if module == NSQD:
        return spawn_nsqd(folder, *flags, prefix=prefix)
    os.environ["PYTHONPATH"] = python_path()
    server = NsqdServer(module, folder, (f"--data-path={folder}", *flags), prefix)
    server.start()
    return server


@contextmanager
def data_folder(keep: Path | None) -> Iterator[Path]:
    """A folder that is removed afterwards, or the one in which everything is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="sparq-proof-") as folder:
            yield Path(folder)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DRAIN_SECONDS) -> None:
    """Return once the condition holds; an AssertionError says what did not come about in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} in {seconds:.0f} s"
        time.sleep(POLL_SECONDS)


def is_drained(server: NsqdServer, topic: str, channels: Iterable[str]) -> bool:
    """Whether nothing waits in any of these channels."""
    waiting = ("depth", "in_flight_count", "deferred_count")
    figures = [server.channel(topic, channel) for channel in channels]
    return all(figure and not any(figure[key] for key in waiting) for figure in figures)
