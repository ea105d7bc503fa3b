"""Foreign clients, unmodified, against nsqd found through nsqlookupd.

pynsq, gnsq and ansq from PyPI and nsqjs from npm, each in an environment of its own: publish with
PUB, MPUB and DPUB, consume, and see that finish, requeue, timeout and touch behave. A client is a
script under `clients/`; its lines say what it was delivered, nsqd's /stats what came of it.
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tests.interop.environments import client_command
from tests.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd

CLIENTS = ("pynsq", "gnsq", "ansq", "nsqjs")
MSG_TIMEOUT_MS = 1500
ANSWER_SECONDS = 30
# What a busy machine may add between a due time and the client's own line about it.
LATE_MS = 1500

pytestmark = [pytest.mark.timeout(600), pytest.mark.parametrize("name", CLIENTS)]


class Client:
    """A running client script, and the lines it has said."""

    def __init__(self, name: str, job: dict[str, Any]) -> None:
        command, environment = client_command(name)
        self.process = subprocess.Popen(
            [*command, json.dumps(job)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: Queue[str] = Queue()
        self.complaints: list[str] = []
        self.listeners = [
            threading.Thread(target=self._listen, args=(self.process.stdout, self.lines.put)),
            threading.Thread(
                target=self._listen, args=(self.process.stderr, self.complaints.append)
            ),
        ]
        for listener in self.listeners:
            listener.start()

    @staticmethod
    def _listen(stream: Any, take: Any) -> None:
        for line in stream:
            take(line)
        stream.close()

    def next(self, event: str) -> dict[str, Any]:
        """The next line, which must be about `event`."""
        try:
            said = json.loads(self.lines.get(timeout=ANSWER_SECONDS))
        except Empty:
            raise AssertionError(f"no {event!r} came:\n{''.join(self.complaints)}") from None
        assert event == said["event"], (said, "".join(self.complaints))
        return dict(said)

    def deliveries(self, count: int) -> list[dict[str, Any]]:
        return [self.next("received") for _ in range(count)]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for listener in self.listeners:
            listener.join()


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with spawn_nsqlookupd(tmp_path_factory.mktemp("interop")) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(lookupd: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    flags = (f"--msg-timeout={MSG_TIMEOUT_MS}ms",)
    with spawn_nsqd(tmp_path_factory.mktemp("interop"), *flags, lookupds=(lookupd,)) as server:
        yield server


@pytest.fixture
def start(
    name: str, nsqd: NsqdServer, lookupd: Server, tmp_path: Path
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Start the client with a job of its own topic; what a test does not say is not published."""
    job: dict[str, Any] = {
        "nsqd": nsqd.tcp,
        "lookupd": lookupd.http,
        "topic": f"interop_{tmp_path.name}"[:64],
        "channel": name,
        "publish": [],
        "multi_publish": [],
        "defer": [],
        "defer_ms": 3_000,
        "plan": "finish",
        "msg_timeout_ms": MSG_TIMEOUT_MS,
        "requeue_ms": 400,
        "hold_ms": 2 * MSG_TIMEOUT_MS,
    }
    started: list[Client] = []

    def start_client(**wishes: Any) -> Client:
        started.append(Client(name, {**job, **wishes}))
        started[-1].next("published")
        return started[-1]

    yield start_client, job
    for client in started:
        client.close()


def drained(nsqd: NsqdServer, job: dict[str, Any]) -> dict[str, Any]:
    """The channel's figures, once nothing in it waits, is in flight or deferred."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        channel = nsqd.channel(job["topic"], job["channel"])
        waiting = ("depth", "in_flight_count", "deferred_count")
        if channel and not any(channel[count] for count in waiting):
            return channel
        time.sleep(0.02)
    raise AssertionError(f"not drained: {channel}")


def test_publish_and_consume(start: Any, nsqd: NsqdServer) -> None:
    """All that PUB and MPUB brought is delivered once, found through nsqlookupd, and finished."""
    client, job = start
    one_by_one = [f"one {number}" for number in range(20)]
    together = [f"together {number} é" for number in range(30)]

    deliveries = client(publish=one_by_one, multi_publish=together).deliveries(50)

    assert {(body, 1) for body in one_by_one + together} == {
        (delivery["body"], delivery["attempts"]) for delivery in deliveries
    }
    channel = drained(nsqd, job)
    assert (50, 0, 0) == tuple(
        channel[count] for count in ("message_count", "requeue_count", "timeout_count")
    )


def test_deferred_publish(start: Any, nsqd: NsqdServer) -> None:
    """A DPUB is delivered when it is due, never earlier."""
    client, job = start

    consumer = client(publish=["now"], defer=["later"])
    first, second = consumer.deliveries(2)

    assert ["now", "later"] == [first["body"], second["body"]]
    assert 1 == second["attempts"]
    drained(nsqd, job)


def test_requeue(start: Any, nsqd: NsqdServer) -> None:
    """A requeued message comes again after its delay, with one more attempt."""
    client, job = start

    first, second = client(publish=["again"], plan="requeue").deliveries(2)

    assert [("again", 1), ("again", 2)] == [(d["body"], d["attempts"]) for d in (first, second)]
    waited_ms = second["at_ms"] - first["at_ms"]
    assert job["requeue_ms"] - 5 <= waited_ms <= job["requeue_ms"] + LATE_MS
    channel = drained(nsqd, job)
    assert (1, 0) == (channel["requeue_count"], channel["timeout_count"])


def test_timeout(start: Any, nsqd: NsqdServer) -> None:
    """A message that is never answered comes again once its timeout is over."""
    client, job = start

    first, second = client(publish=["slow"], plan="timeout").deliveries(2)

    assert [("slow", 1), ("slow", 2)] == [(d["body"], d["attempts"]) for d in (first, second)]
    waited_ms = second["at_ms"] - first["at_ms"]
    assert MSG_TIMEOUT_MS - 20 <= waited_ms <= MSG_TIMEOUT_MS + LATE_MS
    channel = drained(nsqd, job)
    assert (0, 1) == (channel["requeue_count"], channel["timeout_count"])


def test_touch(start: Any, nsqd: NsqdServer) -> None:
    """A message that is touched stays in flight for twice its timeout, and is finished then."""
    client, job = start

    consumer = client(publish=["held"], plan="touch")
    (delivery,) = consumer.deliveries(1)
    channel = drained(nsqd, job)

    assert ("held", 1) == (delivery["body"], delivery["attempts"])
    assert (0, 0) == (channel["requeue_count"], channel["timeout_count"])
    assert consumer.lines.empty()
