"""What it costs nsqadmin to watch a large cluster: `python -m bench.nsqadmin_scale`.

Simulated nodes serve `/stats` with 1,000 topics of 10 channels each, and a simulated nsqlookupd
lists the nodes. The bench prints the time of the first page and of others, nsqadmin's memory, its
CPU time per round, and the number of requests that the nodes get per round with 1 viewer and with
50. The nodes run in other processes and send prepared answers, so the figures are those of nsqadmin
alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import aiohttp

from sparq.broker.stats import ChannelStats
from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin

FIRST_SECONDS_MAX = 1.0
MEMORY_MAX = 300 << 20
VIEWERS = 50
PROCESSES = 2
START_SECONDS = 30.0
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
    b"Content-Length: %d\r\n\r\n"
)


def channel(name: str, number: random.Random) -> dict[str, Any]:
    """A channel, with the fields of sparq's `/stats`; those not set here are 0."""
    counts = ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
    return {
        **{one.name: 0 for one in fields(ChannelStats)},
        **{count: number.randrange(10_000) for count in counts},
        "channel_name": name,
        "message_count": number.randrange(1 << 33),
        "client_count": 2,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        "range_reader": None,
        "cursor": "1033942098419712",
        "finish_count": number.randrange(1 << 33),
        "ready_count": 20,
        "oldest_waiting_seconds": number.random() * 100,
        "clear_seconds": None,
        "range_query": None,
        "range_commit_seconds": None,
    }


def stats(topics: range, channels: int) -> bytes:
    """The `/stats` of a node, as JSON."""
    number = random.Random(1)
    listed = [
        {
            "topic_name": f"topic{topic:05d}",
            "channels": [channel(f"channel{each}", number) for each in range(channels)],
            "depth": 0,
            "backend_depth": 0,
            "message_count": number.randrange(1 << 33),
            "message_bytes": number.randrange(1 << 40),
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
            "log": "a" * 32,
            "first_index": "1033942098419712",
            "end_index": "1033942098419999",
            "log_messages": 10,
            "log_bytes": 1000,
            "unsynced_messages": 0,
            "unsynced_bytes": 0,
            "damaged_messages": 0,
            "refused_count": 0,
            "given_up_count": 0,
            "held_count": 0,
        }
        for topic in topics
    ]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": listed}
    return json.dumps({**document, "sparq_version": "0.1.0"}, separators=(",", ":")).encode()


ONE_TOPIC = stats(range(1, 2), 10)


class Answers(asyncio.Protocol):
    """Sends a prepared answer to each request, and counts the requests of the process."""

    count = 0

    def __init__(self, answer: bytes) -> None:
        self._answer = HEAD % len(answer) + answer
        self._one = HEAD % len(ONE_TOPIC) + ONE_TOPIC

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request; requests are short, so each arrives complete."""
        for request in data.split(b"\r\n\r\n")[:-1]:
            Answers.count += 1
            is_one = b"topic=" in request.partition(b"\r\n")[0]
            self._transport.write(self._one if is_one else self._answer)


def serve(control: Connection, answers: Sequence[bytes]) -> None:
    """Run some nodes: send their ports, and the number of requests whenever asked."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ports = []
        for answer in answers:

            def made(answer: bytes = answer) -> Answers:
                return Answers(answer)

            server = await loop.create_server(made, "127.0.0.1", 0)
            ports.append(server.sockets[0].getsockname()[1])
        control.send(ports)
        while await asyncio.to_thread(control.recv):
            control.send(Answers.count)

    asyncio.run(run())


class Nodes:
    """The processes with the simulated nodes, and one with the nsqlookupd."""

    def __init__(self, nodes: int, topics: int, channels: int, spread: bool) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._controls: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        whole = range(topics)
        parts = [whole[at::nodes] if spread else whole for at in range(nodes)]
        made = {part: stats(part, channels) for part in dict.fromkeys(parts)}
        self.answer_bytes = sum(len(made[part]) for part in parts)
        self.ports: list[int] = []
        for at in range(PROCESSES):
            self._start(spawn, [made[part] for part in parts[at::PROCESSES]])
        names = [f"topic{topic:05d}" for topic in whole]
        producers = [
            {
                "broadcast_address": "127.0.0.1",
                "http_port": port,
                "tcp_port": port,
                "hostname": f"host{at:02d}",
                "remote_address": "127.0.0.1:1",
                "version": "1.3.0",
                "topics": names[:10],
                "tombstones": [],
            }
            for at, port in enumerate(self.ports)
        ]
        self._start(spawn, [json.dumps({"producers": producers}).encode()])
        self.lookupd = f"127.0.0.1:{self.ports.pop()}"

    def _start(self, spawn: Any, answers: Sequence[bytes]) -> None:
        control, other = spawn.Pipe()
        process = spawn.Process(target=serve, args=(other, answers), daemon=True)
        process.start()
        self._controls.append(control)
        self._processes.append(process)
        if not control.poll(START_SECONDS):
            raise TimeoutError("the nodes do not start")
        self.ports += control.recv()

    def requests(self) -> int:
        """Number of requests so far, including those to the nsqlookupd."""
        for control in self._controls:
            control.send(True)
        return sum(control.recv() for control in self._controls)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()


def memory_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def fetch(session: aiohttp.ClientSession, url: str) -> tuple[float, str]:
    """The seconds until the answer, and its text."""
    began = time.monotonic()
    async with session.get(url) as answer:
        text = await answer.text()
        assert answer.status == 200, (url, text)
    return time.monotonic() - began, text


async def view(session: aiohttp.ClientSession, url: str, rounds: int) -> None:
    """Request `rounds` successive overviews, as an open page does."""
    number = 0
    for _ in range(rounds + 1):
        _, text = await fetch(session, f"{url}/api/v2/overview?after={number}")
        number = json.loads(text)["number"]


async def first_picture(session: aiohttp.ClientSession, url: str, nodes: int) -> str:
    """Wait until nsqadmin has the answers of all nodes; return the cluster's size as text."""
    while True:
        _, text = await fetch(session, f"{url}/api/v2/overview")
        totals = json.loads(text)["totals"]
        _, listed = await fetch(session, f"{url}/api/v2/nodes")
        has_all = all(row["answered_at"] for row in json.loads(listed)["rows"])
        if has_all and totals["topics"] and totals["nodes_up"] == nodes:
            figures = totals["topics"], totals["channels"]
            return "{} nodes, {:,} topics, {:,} channels".format(nodes, *figures)
        await asyncio.sleep(0.01)


async def measure(nodes: Nodes, rounds: int) -> bool:
    """Measure and print; return whether the promises hold."""
    base = memory_bytes()
    options = NsqadminOptions(http_address="127.0.0.1:0", lookupd_http_addresses=(nodes.lookupd,))
    admin = Nsqadmin(options)
    began, cpu = time.monotonic(), time.process_time()
    await admin.start()
    url, watch = f"http://127.0.0.1:{admin.http_port}", admin.services.watch
    per_viewers = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        what = await first_picture(session, url, len(nodes.ports))
        page, text = await fetch(session, f"{url}/")
        first = time.monotonic() - began
        print(f"{what}, {nodes.answer_bytes / 1e6:.0f} MB a round")
        print(
            f"first page: {page * 1000:.0f} ms; with all figures {first:.2f} s after the start, ",
            end="",
        )
        print(f"with {time.process_time() - cpu:.2f} s of CPU time")
        for path in ("/topics", "/topics?view=channels", "/nodes", "/topics/topic00001"):
            took, text = await fetch(session, f"{url}{path}")
            print(f"{path:<24} {took * 1000:4.0f} ms, {len(text) / 1e3:.0f} kB")
        for viewers in (1, VIEWERS):
            asked, before, cpu = nodes.requests(), watch.rounds, time.process_time()
            await asyncio.gather(*(view(session, url, rounds) for _ in range(viewers)))
            made = watch.rounds - before
            cpu = (time.process_time() - cpu) / made
            per_viewers[viewers] = (await asyncio.to_thread(nodes.requests) - asked) / made
            print(f"{viewers} viewers: {per_viewers[viewers]:.1f} requests a round, ", end="")
            print(f"{made} rounds, CPU {cpu:.2f} s a round")
    history = watch.history
    rest = history.size_bytes * (360 - history.steps) // max(1, history.steps)
    await admin.stop()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"memory: {base >> 20} MiB before, {most >> 20} MiB at most, ", end="")
    print(f"{(most + rest) >> 20} MiB when the history holds a full hour")
    holds = page <= FIRST_SECONDS_MAX and most + rest <= MEMORY_MAX
    return holds and per_viewers[VIEWERS] <= per_viewers[1] * 1.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--spread", action="store_true", help="each topic is on one node only")
    options = parser.parse_args(arguments)
    nodes = Nodes(options.nodes, options.topics, options.channels, options.spread)
    try:
        holds = asyncio.run(measure(nodes, options.rounds))
    finally:
        nodes.close()
    verdict = "holds" if holds else "FAILS"
    print(f"page under 1 s, under 300 MiB, no more requests for {VIEWERS} viewers: {verdict}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
