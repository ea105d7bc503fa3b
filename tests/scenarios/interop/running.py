"""Runs a client's script as a separate process and reads the lines it prints."""

import json
import subprocess
import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import IO, Any, TypeVar

from tests.scenarios.interop.environments import client_command
from tests.support.waiting import wait_for

ANSWER_SECONDS = 60.0

T = TypeVar("T")


class Client:
    """A running script. `close` kills it; lines that it printed before can still be read."""

    def __init__(self, name: str, job: dict[str, Any]) -> None:
        command, environment = client_command(name)
        self.name = name
        self.job = job
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        with self.process.stdin as told:
            json.dump(job, told)
        self._lines: Queue[str] = Queue()
        self._complaints: list[str] = []
        self._listeners = (
            self._listener(self.process.stdout, self._lines.put),
            self._listener(self.process.stderr, self._complaints.append),
        )

    @staticmethod
    def _listener(stream: IO[str] | None, take: Callable[[str], None]) -> threading.Thread:
        assert stream is not None

        def listen() -> None:
            for line in stream:
                take(line)
            stream.close()
            take("")

        thread = threading.Thread(target=listen)
        thread.start()
        return thread

    @property
    def complaints(self) -> str:
        """The end of what the script wrote to standard error."""
        return "".join(self._complaints)[-4000:]

    def next(self, *events: str) -> dict[str, Any]:
        """Return the next line, which must be one of `events`."""
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except Empty:
            raise AssertionError(f"{self.name}: no {events} came:\n{self.complaints}") from None
        assert line, f"{self.name} ended before {events}:\n{self.complaints}"
        said = json.loads(line)
        assert said["event"] in events, (self.name, said, self.complaints)
        return dict(said)

    def published(self) -> dict[str, Any]:
        """Wait until everything is published; return the `publishing` line."""
        before = self.next("publishing")
        self.next("published")
        return before

    def deliveries(self, count: int) -> list[dict[str, Any]]:
        """The next `count` deliveries."""
        return [self.next("received") for _ in range(count)]

    @property
    def silent(self) -> bool:
        """Whether every printed line has been read."""
        return self._lines.empty()

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        for listener in self._listeners:
            listener.join()


def eventually(check: Callable[[], T], happened: Callable[[T], bool]) -> T:
    """Call `check` until `happened` is true of its result, and return that result."""
    seen: list[T] = []

    def has_happened() -> bool:
        seen[:] = [check()]
        return happened(seen[0])

    wait_for(has_happened, ANSWER_SECONDS, lambda: f"last seen: {seen[0]!r}", every=0.02)
    return seen[0]
