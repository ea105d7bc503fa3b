"""What it costs nsqadmin to watch a large cluster: `python -m bench.nsqadmin_scale`.

Simulated nodes serve `/stats` with 1,000 topics of 10 channels each, and a simulated nsqlookupd
lists the nodes. The bench prints the time of the first page and of others, nsqadmin's memory, its
CPU time per round, and the number of requests that the nodes get per round with 1 viewer and with
50. The nodes run in another process and send prepared answers, so the figures are those of nsqadmin
alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from aiohttp import web

from bench.measure import memory_mib
from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin

FIRST_SECONDS_MAX = 1.0
MEMORY_MIB_MAX = 300
VIEWERS = 50
PAGES = ("/topics", "/topics?view=channels", "/nodes", "/topics/topic00001")


def stats(topics: int, channels: int) -> bytes:
    """The `/stats` of a node, as JSON: NSQ's members, with random figures."""
    chance = random.Random(1)
    counts = "depth in_flight_count deferred_count requeue_count timeout_count message_count"
    common = {"paused": False, "e2e_processing_latency": {"count": 0, "percentiles": None}}

    def channel(number: int) -> dict[str, Any]:
        figures = {name: chance.randrange(10_000) for name in counts.split()}
        more = {"channel_name": f"channel{number}", "client_count": 2, "clients": None}
        return {**common, **figures, **more, "backend_depth": 0}

    listed = [
        {
            **common,
            "topic_name": f"topic{topic:05d}",
            "channels": [channel(each) for each in range(channels)],
            **dict.fromkeys(("depth", "backend_depth", "message_bytes"), 0),
            "message_count": chance.randrange(1 << 33),
        }
        for topic in range(topics)
    ]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": listed}
    return json.dumps(document).encode()


def serve(control: Connection, nodes: int, topics: int, channels: int) -> None:
    """Run the nodes and the nsqlookupd: send their ports, and the requests so far if asked."""
    whole, one = stats(topics, channels), stats(2, channels)
    ports: list[int] = []
    asked = 0

    async def answer(request: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        if request.path == "/nodes":
            place = {"broadcast_address": "127.0.0.1", "remote_address": "127.0.0.1:1"}
            rest = {"version": "1.3.0", "topics": ["topic00001"], "tombstones": [False]}
            producers = [
                {**place, **rest, "http_port": port, "tcp_port": port, "hostname": f"host{port}"}
                for port in ports[:-1]
            ]
            return web.json_response({"producers": producers})
        body = one if "topic" in request.query else whole
        return web.Response(body=body, content_type="application/json")

    async def run() -> None:
        server = web.Server(answer)
        for _ in range(nodes + 1):
            listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
            ports.append(listening.sockets[0].getsockname()[1])
        control.send(ports)
        while await asyncio.to_thread(control.recv):
            control.send(asked)

    asyncio.run(run())


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


async def measure(control: Connection, lookupd: str, options: argparse.Namespace) -> bool:
    """Measure and print; return whether the promises hold."""

    def requests() -> int:
        control.send(True)
        return int(control.recv())

    base = memory_mib(multiprocessing.current_process().pid or 0)
    admin = Nsqadmin(NsqadminOptions(http_address="127.0.0.1:0", lookupd_http_addresses=(lookupd,)))
    began, cpu = time.monotonic(), time.process_time()
    await admin.start()
    url, watch = f"http://127.0.0.1:{admin.http_port}", admin.services.watch
    asked: dict[int, float] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        up = 0
        while up != options.nodes:
            _, listed = await fetch(session, f"{url}/api/v2/nodes")
            up = sum(bool(row["answered_at"]) for row in json.loads(listed)["rows"])
        page, _ = await fetch(session, f"{url}/")
        print(
            f"{options.nodes} nodes, first page {page * 1000:.0f} ms; all figures "
            f"{time.monotonic() - began:.2f} s after the start, CPU {time.process_time() - cpu:.2f}"
        )
        for path in PAGES:
            took, text = await fetch(session, f"{url}{path}")
            print(f"{path:<24} {took * 1000:4.0f} ms, {len(text) / 1e3:.0f} kB")
        for viewers in (1, VIEWERS):
            before, rounds, cpu = requests(), watch.rounds, time.process_time()
            await asyncio.gather(*(view(session, url, options.rounds) for _ in range(viewers)))
            made = watch.rounds - rounds
            cpu = (time.process_time() - cpu) / made
            asked[viewers] = (await asyncio.to_thread(requests) - before) / made
            print(f"{viewers} viewers: {asked[viewers]:.1f} requests a round, CPU {cpu:.2f} s")
    history = watch.history
    rest = history.size_bytes * (360 - history.steps) / max(1, history.steps) / (1 << 20)
    await admin.stop()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory: {base:.0f} MiB, {most:.0f} at most, {most + rest:.0f} with an hour of history")
    is_small = page <= FIRST_SECONDS_MAX and most + rest <= MEMORY_MIB_MAX
    return is_small and asked[VIEWERS] <= asked[1] * 1.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name, default in (("nodes", 20), ("topics", 1000), ("channels", 10), ("rounds", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    control, other = spawn.Pipe()
    sizes = (options.nodes, options.topics, options.channels)
    process = spawn.Process(target=serve, args=(other, *sizes), daemon=True)
    process.start()
    try:
        lookupd = f"127.0.0.1:{control.recv()[-1]}"
        holds = asyncio.run(measure(control, lookupd, options))
    finally:
        process.kill()
    verdict = "holds" if holds else "FAILS"
    print(f"page under 1 s, under 300 MiB, no more requests for {VIEWERS} viewers: {verdict}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
