"""What inspecting a large topic costs: `python -m bench.inspection`.

An nsqd has a topic with 5 million messages waiting in a channel. The bench requests pages, single
messages and searches, each several times, and searches the whole topic. Meanwhile another process
sends one message after the other through another topic and waits for each.

On a shared machine some deliveries are late without any request. The cost of a request recurs each
time it is sent. So each is sent three times, with pauses of the same length in between (A B A B A
B), and the lowest of the three counts: for the time to the answer, and for the longest delivery
during the request. The same holds for deliveries in the pauses. The longest single times are
printed too, and the number of fdatasyncs that nsqd has counted as slow: a message with a slow
fdatasync is late with or without a request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.servers import NsqdServer, spawn_nsqd

from bench.stats_scale import Way, longest_during, send_and_wait

TOPIC = "large"
BATCH = 10_000
ANSWER_SECONDS_MAX = 0.1
LATER_SECONDS_MAX = 0.02
QUIET_SECONDS = 3.0
TRIES = 3
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 20.0
SLOW_SYNC = "0.025"
"""A bucket limit of `nsqd_fsync_duration_seconds`, in seconds: longer syncs count as slow."""

Span = tuple[float, float]
Answer = dict[str, Any]


def body_of(number: int) -> bytes:
    """A JSON body of about 200 bytes."""
    document = {"user": {"id": f"u{number}"}, "status": 500 if number % 1000 == 0 else 200}
    return json.dumps(document | {"text": f"message number {number} " + "x" * 120}).encode()


class Nsqd:
    """An HTTP connection to nsqd that times its answers."""

    def __init__(self, server: NsqdServer) -> None:
        self._connection = http.client.HTTPConnection(server.http)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[Span, Any]:
        """The time span from the request to its complete answer, and the answer."""
        began = time.monotonic()
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        told = answer.read()
        ended = time.monotonic()
        assert answer.status == 200, (path, told)
        is_json = (answer.headers.get("Content-Type") or "").startswith("application/json")
        return (began, ended), json.loads(told) if is_json else told

    def slow_syncs(self) -> int:
        """Number of syncs so far that took longer than `SLOW_SYNC`."""
        _, text = self.ask("GET", "/metrics")
        name = b"nsqd_fsync_duration_seconds"
        counted = dict(line.rsplit(b" ", 1) for line in text.splitlines() if line.startswith(name))
        bucket = name + b'_bucket{le="%s"}' % SLOW_SYNC.encode()
        return int(float(counted[name + b"_count"]) - float(counted[bucket]))


def fill(nsqd: Nsqd, count: int) -> None:
    """Create the topic and its channel, and publish the messages, 10,000 at a time."""
    nsqd.ask("POST", f"/topic/create?topic={TOPIC}")
    nsqd.ask("POST", f"/channel/create?topic={TOPIC}&channel=c")
    for first in range(0, count, BATCH):
        bodies = [body_of(number) for number in range(first, min(first + BATCH, count))]
        framed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        data = struct.pack(">i", len(bodies)) + framed
        nsqd.ask("POST", f"/mpub?topic={TOPIC}&binary=true", data)


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of request.

    Attributes:
        name: its name in the output.
        path: returns the path of a request, for a random place in the log.
    """

    name: str
    path: Callable[[], str]


def questions(nsqd: Nsqd, count: int, chance: random.Random) -> Iterator[Question]:
    """The kinds of requests."""
    topic = f"topic={TOPIC}"
    _, log = nsqd.ask("GET", f"/topic/messages?{topic}&limit=1")
    first, end = int(log["first_index"]), int(log["end_index"])
    _, node = nsqd.ask("GET", f"/message?{topic}&id={log['messages'][0]['id']}")
    base = int(node["id"], 16) - first

    def anywhere() -> int:
        return chance.randrange(first, end)

    def seconds_ago() -> str:
        return f"-{chance.randrange(1, 900)}s"

    def searching(condition: str) -> Callable[[], str]:
        return lambda: f"/topic/search?{topic}&from={anywhere()}&{condition}"

    def peek(limit: int) -> str:
        return f"/channel/messages?{topic}&channel=c&limit={limit}"

    yield Question("peek, first page", lambda: peek(50))
    yield Question("peek, any page", lambda: f"{peek(50)}&after=0.{anywhere()}")
    yield Question("peek, 1,000 messages", lambda: f"{peek(1000)}&after=0.{anywhere()}")
    yield Question("log, last 50", lambda: f"/topic/messages?{topic}&from=last:50")
    yield Question("log, by time", lambda: f"/topic/messages?{topic}&from={seconds_ago()}")
    yield Question("find by id", lambda: f"/message?{topic}&channel=c&id={anywhere() + base:016x}")
    yield Question("search, text that is rare", searching(f"text=number%20{count + 7}"))
    yield Question("search, text of all", searching("text=message"))
    yield Question("search, JSON, one value", searching("json=" + quote(f'user.id = "u{count}"')))
    yield Question("search, JSON, numbers", searching("json=" + quote("status >= 501")))
    yield Question("search, pattern", searching("regex=" + quote("number [0-9]+ y")))
    yield Question("search, by state", searching("channel=c&state=waiting&text=nothing"))
    yield Question("times", lambda: f"/topic/times?{topic}&channel=c")
    yield Question("stats", lambda: f"/stats?format=json&{topic}")


@dataclass(frozen=True, slots=True)
class Probe:
    """One request, sent several times with pauses in between.

    Attributes:
        name: its name in the output.
        asked: the time spans of the requests.
        paused: the time spans of the pauses, each as long as its request.
    """

    name: str
    asked: list[Span]
    paused: list[Span]


def probe(name: str, ask: Callable[[], tuple[Span, Any]], syncs: SlowSyncs) -> Probe:
    """Send the request TRIES times, each time with a pause of the same length."""
    found = Probe(name, [], [])
    for _ in range(TRIES):
        span, _ = ask()
        found.asked.append(span)
        syncs.count(asked=True)
        found.paused.append(pause(span))
        syncs.count(asked=False)
    return found


def pause(asked: Span) -> Span:
    """Pause for about as long as the request took; return the pause's time span."""
    began = time.monotonic()
    time.sleep(min(max(asked[1] - asked[0], PAUSE_SECONDS), PAUSE_SECONDS_MAX))
    return began, time.monotonic()


def search_all(nsqd: Nsqd, condition: str) -> tuple[Span, int]:
    """Search the whole topic; return the time span and the number of requests."""
    path = f"/topic/search?topic={TOPIC}&{condition}"
    span, answer = nsqd.ask("GET", path)
    requests = 1
    while not answer["done"]:
        (_, end), answer = nsqd.ask("GET", f"{path}&after={answer['next']}")
        span, requests = (span[0], end), requests + 1
    return span, requests


@dataclass(slots=True)
class SlowSyncs:
    """Number of slow syncs of nsqd during requests, and in the pauses."""

    nsqd: Nsqd
    asked: int = 0
    paused: int = 0
    _known: int = 0

    def __post_init__(self) -> None:
        self._known = self.nsqd.slow_syncs()

    def count(self, *, asked: bool) -> None:
        """Add the slow syncs since the last count to `asked`, or to `paused`."""
        before, self._known = self._known, self.nsqd.slow_syncs()
        self.asked += (self._known - before) * asked
        self.paused += (self._known - before) * (not asked)


@contextmanager
def deliveries(server: NsqdServer, ways: list[Way]) -> Iterator[None]:
    """Send message after message through nsqd meanwhile; add their time spans to `ways`."""
    control, other = multiprocessing.get_context("spawn").Pipe()
    sender = multiprocessing.get_context("spawn").Process(
        target=send_and_wait, args=(server.tcp_port, other), daemon=True
    )
    sender.start()
    yield
    control.send("enough")
    ways += control.recv()
    sender.join()


def measure(count: int, rounds: int, data: Path | None = None) -> bool:
    """Measure and print; return whether the promises hold. nsqd's data go to a folder in `data`."""
    ways: list[Way] = []
    probes: list[Probe] = []
    wholes: list[Probe] = []
    with (
        tempfile.TemporaryDirectory(prefix="sparq-inspection-", dir=data) as folder,
        spawn_nsqd(Path(folder)) as server,
    ):
        nsqd = Nsqd(server)
        fill(nsqd, count)
        syncs = SlowSyncs(nsqd)
        with deliveries(server, ways):
            time.sleep(QUIET_SECONDS)
            for question in questions(nsqd, count, random.Random(7)):
                for _ in range(rounds):
                    ask = partial(nsqd.ask, "GET", question.path())
                    probes.append(probe(question.name, ask, syncs))
            for name, condition in (
                ("text", "text=nothing%20like%20it"),
                ("JSON, one value", "json=" + quote('user.id = "nobody"')),
                ("JSON, numbers", "json=" + quote("status > 500")),
            ):
                search = partial(search_all, nsqd, condition)
                wholes.append(probe(f"whole topic, {name}", search, syncs))
    holds = report(ways, probes, wholes)
    print(
        f"fdatasyncs of more than {float(SLOW_SYNC) * 1000:.0f} ms: {syncs.asked} during requests,"
        f" {syncs.paused} in the pauses"
    )
    return holds


def report(ways: Sequence[Way], probes: Sequence[Probe], wholes: Sequence[Probe]) -> bool:
    """Print the figures, and return whether the promises hold."""
    names = dict.fromkeys(found.name for found in [*probes, *wholes])
    for name in names:
        same = [found for found in [*probes, *wholes] if found.name == name]
        times = answers(same)
        print(
            f"{name:<28} answers in {min(times) * 1000:6.1f} to {max(times) * 1000:6.1f} ms;"
            f" longest delivery meanwhile {while_asked(ways, same) * 1000:5.1f} ms,"
            f" {while_paused(ways, same) * 1000:5.1f} ms in the pauses"
        )
    every = [*probes, *wholes]
    singles = {
        "answer": max(end - begin for found in probes for begin, end in found.asked),
        "delivery during requests": longest_during(ways, [s for f in every for s in f.asked]),
        "delivery in the pauses": longest_during(ways, [s for f in every for s in f.paused]),
    }
    print("longest single " + ", ".join(f"{n} {s * 1000:.1f} ms" for n, s in singles.items()))
    slowest = max(answers(probes))
    later = while_asked(ways, every) - while_paused(ways, every)
    holds = slowest < ANSWER_SECONDS_MAX and later < LATER_SECONDS_MAX
    verdict = "holds" if holds else "DOES NOT HOLD"
    print(
        f"first answers under 100 ms: {slowest * 1000:.1f} ms; deliveries at most 20 ms later:"
        f" {later * 1000:.1f} ms: {verdict}"
    )
    return holds


def answers(probes: Sequence[Probe]) -> list[float]:
    """For each request, the shortest time to the answer of its tries, in seconds."""
    return [min(end - begin for begin, end in found.asked) for found in probes]


def while_asked(ways: Sequence[Way], probes: Sequence[Probe]) -> float:
    """The longest delivery that recurred in every try of the same request, in seconds."""
    return max(min(longest_during(ways, [span]) for span in found.asked) for found in probes)


def while_paused(ways: Sequence[Way], probes: Sequence[Probe]) -> float:
    """The longest delivery that recurred in every pause after the same request, in seconds."""
    return max(min(longest_during(ways, [span]) for span in found.paused) for found in probes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=5_000_000)
    parser.add_argument(
        "--rounds", type=int, default=10, help="random places for each kind of request"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder for nsqd's data; on a tmpfs, no disk delays the figures",
    )
    options = parser.parse_args(arguments)
    return 0 if measure(options.count, options.rounds, options.data) else 1


if __name__ == "__main__":
    sys.exit(main())
