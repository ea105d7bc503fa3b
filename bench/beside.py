"""What else nsqd does must not delay deliveries: `python -m bench.beside stats inspection idle`.

Another process sends one message after the other through nsqd and waits for each. Meanwhile:

- stats       `/stats` and `/metrics` of 1,000 topics (`--topics`) with 5 channels each
- inspection  pages, single messages and searches of a topic with 5 million messages (`--count`)
- idle        10,000 connections (`--connections`) that only answer heartbeats, and their memory

On a shared machine some deliveries are late without any request. The cost of a request recurs each
time it is sent. So each is sent three times, with pauses of the same length in between (A B A B A
B), and the lowest of the three counts: for the time to the answer, and for the longest delivery
during the request. The same holds for deliveries in the pauses.
"""

from __future__ import annotations

import argparse
import asyncio
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import MAGIC, OK, V2Client, fin_each
from tests.support.v2_stream import HEARTBEAT, V2Stream

from bench.measure import memory_mib
from sparq.daemon.files import raise_limit
from sparq.protocol.commands import identify, nop, pub, rdy, sub

TOPIC = "large"
BATCH = 10_000
TRIES = 3
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 20.0
QUIET_SECONDS = 3.0
DELIVERY_SECONDS = 60.0
HEARTBEAT_MS = 5_000
STEP = 200
"""Connections opened at a time: the listener's backlog is 1,024."""

ROW = (
    "{:<28} answers in {:6.1f} to {:6.1f} ms; longest delivery meanwhile {:5.1f} ms, "
    "{:5.1f} ms in the pauses"
)

Span = tuple[float, float]
"""Two times on the machine's monotonic clock: of a delivery, a request or a pause."""


class Limits(NamedTuple):
    """Of the slowest answer, and of how much later than in the pauses deliveries are."""

    answer_seconds: float
    later_seconds: float


class Probe(NamedTuple):
    """One request, sent several times, and the pauses in between, each as long as its request."""

    name: str
    asked: list[Span]
    paused: list[Span]


def send_and_wait(port: int, control: Any) -> None:
    """Send message after message until `control` has input; then send back all their times."""
    spans: list[Span] = []
    publish = pub("stall", b"body")
    with V2Client(port, seconds=DELIVERY_SECONDS, answers_heartbeats=True) as client:
        assert client.ask(sub("stall", "c")) == OK
        client.send(rdy(1))
        while not control.poll():
            began = time.monotonic()
            client.send(publish)
            messages = client.messages(1)
            spans.append((began, time.monotonic()))
            client.send(fin_each(messages))
            assert client.ask(b"") == OK
    control.send(spans)


@contextmanager
def deliveries(server: NsqdServer, spans: list[Span]) -> Iterator[None]:
    """Send message after message through nsqd meanwhile; add their time spans."""
    spawn = multiprocessing.get_context("spawn")
    control, other = spawn.Pipe()
    sender = spawn.Process(target=send_and_wait, args=(server.tcp_port, other), daemon=True)
    sender.start()
    time.sleep(QUIET_SECONDS)
    yield
    control.send("enough")
    spans += control.recv()
    sender.join()


def probe(name: str, ask: Callable[[], Span]) -> Probe:
    """Send the request TRIES times, each time with a pause of the same length."""
    found = Probe(name, [], [])
    for _ in range(TRIES):
        began, ended = ask()
        found.asked.append((began, ended))
        time.sleep(min(max(ended - began, PAUSE_SECONDS), PAUSE_SECONDS_MAX))
        found.paused.append((ended, time.monotonic()))
    return found


def longest_during(sent: Sequence[Span], span: Span) -> float:
    """The longest delivery that overlaps a span, in seconds."""
    overlapping = (end - begin for begin, end in sent if begin < span[1] > span[0] < end)
    return max(overlapping, default=0.0)


def recurring(sent: Sequence[Span], spans: Sequence[Span]) -> float:
    """The longest delivery that recurred in each of these spans, in seconds."""
    return min(longest_during(sent, span) for span in spans)


def report(sent: Sequence[Span], probes: Sequence[Probe], limits: Limits) -> bool:
    """Print the figures, and return whether they are within the limits.

    Searches of whole topics take many requests: their time has no limit.
    """
    names = dict.fromkeys(each.name for each in probes)
    rows = {}
    for name in names:
        same = [each for each in probes if each.name == name]
        times = [min(end - begin for begin, end in each.asked) for each in same]
        asked = max(recurring(sent, each.asked) for each in same)
        paused = max(recurring(sent, each.paused) for each in same)
        rows[name] = max(times), asked, paused
        figures = [1000 * each for each in (min(times), max(times), asked, paused)]
        print(ROW.format(name, *figures))
    slowest = max(row[0] for name, row in rows.items() if not name.startswith("whole"))
    later = max(row[1] for row in rows.values()) - max(row[2] for row in rows.values())
    holds = slowest < limits.answer_seconds and later < limits.later_seconds
    print(
        f"answers under {limits.answer_seconds * 1000:.0f} ms: {slowest * 1000:.1f} ms; deliveries "
        f"at most {limits.later_seconds * 1000:.0f} ms later: {later * 1000:.1f} ms: "
        f"{'holds' if holds else 'DOES NOT HOLD'}"
    )
    return holds


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

    def span(self, path: str) -> Span:
        """The time span of a request."""
        found, _ = self.ask("GET", path)
        return found


def stats(server: NsqdServer, options: argparse.Namespace) -> bool:
    """Ask for the figures of many topics."""
    nsqd, sent = Nsqd(server), list[Span]()
    for number in range(options.topics):
        nsqd.ask("POST", f"/topic/create?topic=topic{number}")
        for channel in range(5):
            nsqd.ask("POST", f"/channel/create?topic=topic{number}&channel=c{channel}")
    with deliveries(server, sent):
        probes = [
            probe(path, partial(nsqd.span, path))
            for path in ("/stats?format=json", "/stats", "/metrics") * options.rounds
        ]
    return report(sent, probes, Limits(1.0, 0.05))


def fill(nsqd: Nsqd, count: int) -> None:
    """Publish JSON bodies of about 200 bytes, 10,000 at a time."""
    nsqd.ask("POST", f"/topic/create?topic={TOPIC}")
    nsqd.ask("POST", f"/channel/create?topic={TOPIC}&channel=c")
    for first in range(0, count, BATCH):
        framed = []
        for number in range(first, min(first + BATCH, count)):
            document = {"user": {"id": f"u{number}"}, "status": 500 if number % 1000 == 0 else 200}
            text = f"message number {number} " + "x" * 120
            body = json.dumps(document | {"text": text}).encode()
            framed.append(struct.pack(">i", len(body)) + body)
        data = struct.pack(">i", len(framed)) + b"".join(framed)
        nsqd.ask("POST", f"/mpub?topic={TOPIC}&binary=true", data)


LOG, WAITING = f"/topic/messages?topic={TOPIC}", f"/channel/messages?topic={TOPIC}&channel=c"
SEARCH = f"/topic/search?topic={TOPIC}"
ANYWHERE = f"{SEARCH}&from={{index}}"
QUESTIONS = {
    "peek, any page": f"{WAITING}&limit=50&after=0.{{index}}",
    "peek, 1,000 messages": f"{WAITING}&limit=1000&after=0.{{index}}",
    "log, by time": f"{LOG}&from=-{{seconds}}s",
    "find by id": f"/message?topic={TOPIC}&channel=c&id={{id}}",
    "search, text that is rare": f"{ANYWHERE}&text=number%20{{count}}7",
    "search, JSON, one value": f"{ANYWHERE}&json=user.id%20=%20%22u{{count}}%22",
    "search, JSON, numbers": f"{ANYWHERE}&json=status%20%3E=%20501",
    "times": f"/topic/times?topic={TOPIC}&channel=c",
    "stats": f"/stats?format=json&topic={TOPIC}",
}


def search_all(nsqd: Nsqd, condition: str) -> Span:
    """Search the whole topic; return the time span of all requests."""
    path = f"{SEARCH}&{condition}"
    (began, ended), answer = nsqd.ask("GET", path)
    while not answer["done"]:
        (_, ended), answer = nsqd.ask("GET", f"{path}&after={answer['next']}")
    return began, ended


def inspection(server: NsqdServer, options: argparse.Namespace) -> bool:
    """Look into a large topic, at random places."""
    nsqd, sent, probes = Nsqd(server), list[Span](), list[Probe]()
    fill(nsqd, options.count)
    _, log = nsqd.ask("GET", f"{LOG}&limit=1")
    first, end = int(log["first_index"]), int(log["end_index"])
    base, chance = int(log["messages"][0]["id"], 16) - first, random.Random(7)
    with deliveries(server, sent):
        for name, path in QUESTIONS.items():
            for _ in range(options.rounds):
                index = chance.randrange(first, end)
                places = {"index": index, "id": f"{index + base:016x}", "count": options.count}
                asked = path.format(**places, seconds=chance.randrange(1, 900))
                probes.append(probe(name, partial(nsqd.span, asked)))
        search = partial(search_all, nsqd, "text=nothing%20like%20it")
        probes.append(probe("whole topic", search))
    return report(sent, probes, Limits(0.1, 0.02))


class Idler(asyncio.Protocol):
    """A client that only answers heartbeats."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream = V2Stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send IDENTIFY."""
        self.transport = cast(asyncio.Transport, transport)
        body = json.dumps({"heartbeat_interval": HEARTBEAT_MS}).encode()
        self.transport.write(MAGIC + identify(body))

    def data_received(self, data: bytes) -> None:
        """Receive the OK, then answer heartbeats."""
        self._stream.feed(data)
        for frame in self._stream.frames():
            if frame == OK:
                self.ready.set_result(None)
            else:
                assert frame[1] == HEARTBEAT, frame
                self.transport.write(nop())


async def rest(server: NsqdServer, count: int) -> tuple[float, Span]:
    """Open connections in steps, and hold them; return nsqd's memory for all in MiB, and when."""
    loop, before = asyncio.get_running_loop(), memory_mib(server.pid)
    idlers: list[Idler] = []
    for first in range(0, count, STEP):
        made = await asyncio.gather(
            *(
                loop.create_connection(Idler, "127.0.0.1", server.tcp_port)
                for _ in range(min(STEP, count - first))
            )
        )
        await asyncio.gather(*(idler.ready for _, idler in made))
        idlers += [idler for _, idler in made]
    memory, began = memory_mib(server.pid) - before, time.monotonic()
    await asyncio.sleep(2 * HEARTBEAT_MS / 1000)
    span = began, time.monotonic()
    assert not any(idler.transport.is_closing() for idler in idlers), "nsqd dropped a connection"
    for idler in idlers:
        idler.transport.close()
    return memory, span


def idle(server: NsqdServer, options: argparse.Namespace) -> bool:
    """Open idle connections; the rate of the deliveries must not suffer."""
    count, sent = options.connections, list[Span]()
    with deliveries(server, sent):
        began = time.monotonic()
        time.sleep(QUIET_SECONDS)
        alone = began, time.monotonic()
        memory, beside = asyncio.run(rest(server, count))
    rates = [
        sum(span[0] <= begin < span[1] for begin, _ in sent) / (span[1] - span[0])
        for span in (alone, beside)
    ]
    kib = memory * 1024 / count
    print(f"{count:,} idle connections: {kib:.1f} KiB each")
    print("deliveries alone {:,.0f} a second, beside them {:,.0f}".format(*rates))
    return kib < 30 and rates[1] > 0.8 * rates[0]


MEASURES = {"stats": stats, "inspection": inspection, "idle": idle}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", default=[*MEASURES], help="default: all")
    for name, default in (("topics", 1000), ("count", 5_000_000), ("connections", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5, help="of each kind of request")
    parser.add_argument("--data", type=Path, help="folder for nsqd's data")
    options = parser.parse_args(arguments)
    raise_limit()
    holds = []
    for name in options.measures:
        with (
            tempfile.TemporaryDirectory(prefix="sparq-beside-", dir=options.data) as folder,
            spawn_nsqd(Path(folder)) as server,
        ):
            holds.append(MEASURES[name](server, options))
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
