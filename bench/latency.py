"""Publish-to-deliver latency: `make latency`.

One publisher sends 1,000 PUBs per second, and one consumer at RDY 100 finishes each message. nsqd
has its durable defaults (fdatasync before OK and before delivery). Each body contains its send
time; the consumer subtracts it from the arrival time. Publisher and consumer are separate
processes, so that neither waits for the other or for an event loop. The monotonic clock is the same
for all processes of a machine.
"""

import argparse
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import V2Client
from tests.support.v2_stream import FRAME_MESSAGE, HEARTBEAT, V2Stream, decode_message

from bench.measure import Meter
from sparq.options.units import SECOND
from sparq.protocol.commands import fin, nop, pub, rdy, sub

TOPIC, CHANNEL = "latency", "bench"
STAMP = struct.Struct(">q")
WARM_UP_SECONDS = 1.0
P50_MS_MAX, P99_MS_MAX = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load: its length and rate, the consumer's RDY count, and the size of a body."""

    seconds: float = 10
    rate: int = 1000
    ready_count: int = 100
    body_size: int = 200

    @property
    def warm_up(self) -> int:
        """Number of messages that are sent first and not measured."""
        return int(WARM_UP_SECONDS * self.rate)

    @property
    def count(self) -> int:
        """Number of messages, including the warm-up."""
        return self.warm_up + int(self.seconds * self.rate)


@dataclass(frozen=True, slots=True)
class Latency:
    """The results of one run; times in ms, as `quantiles` returns them."""

    delivered_ms: tuple[float, ...]
    answered_ms: tuple[float, ...]
    sync_ms: tuple[float, ...]
    server_cpu_us: float

    @property
    def holds(self) -> bool:
        """Whether the promise holds: publish to deliver p50 under 1 ms, p99 under 10 ms."""
        return self.delivered_ms[0] < P50_MS_MAX and self.delivered_ms[2] < P99_MS_MAX

    def lines(self) -> list[str]:
        """The figures as lines of text."""
        return [
            f"publish to deliver  {shown(self.delivered_ms)}",
            f"publish to OK       {shown(self.answered_ms)}",
            f"fdatasync alone     {shown(self.sync_ms)}  (4 KiB, this disk, before the run)",
            f"nsqd's CPU          {self.server_cpu_us:.1f} us a message",
        ]


def shown(figures: tuple[float, ...]) -> str:
    return "p50 {:.3f} ms  p90 {:.3f}  p99 {:.3f}  p99.9 {:.3f}  max {:.3f}".format(*figures)


def quantiles(nanoseconds: Sequence[int]) -> tuple[float, ...]:
    """p50, p90, p99, p99.9 and the maximum, in ms."""
    values = np.quantile(np.array(nanoseconds, np.float64), [0.5, 0.9, 0.99, 0.999, 1.0])
    return tuple(float(value) / 1e6 for value in values)


def publish(port: int, load: Load, results: Connection) -> None:
    """Send at an even rate without waiting for answers; report the time to each OK in ns."""
    connection = V2Client(port).socket
    connection.setblocking(False)
    filling = bytes(load.body_size - STAMP.size)
    unanswered: deque[int] = deque()
    answered_ns: list[int] = []
    stream = V2Stream()
    began = time.monotonic_ns()
    for number in range(load.count):
        due = began + number * SECOND // load.rate
        while (early_ns := due - time.monotonic_ns()) > 0:
            time.sleep(min(early_ns, 200_000) / SECOND)
            take_answers(connection, stream, unanswered, answered_ns)
        unanswered.append(time.monotonic_ns())
        connection.sendall(pub(TOPIC, STAMP.pack(unanswered[-1]) + filling))
    while unanswered:
        take_answers(connection, stream, unanswered, answered_ns)
    results.send(answered_ns)


def take_answers(
    connection: socket.socket, stream: V2Stream, unanswered: deque[int], answered_ns: list[int]
) -> None:
    try:
        stream.feed(connection.recv(65_536))
    except BlockingIOError:
        return
    for _, data in stream.frames():
        if data == HEARTBEAT:
            connection.sendall(nop())
        elif data == b"OK":
            answered_ns.append(time.monotonic_ns() - unanswered.popleft())
        else:
            raise AssertionError(data)


def consume(port: int, load: Load, results: Connection) -> None:
    """Finish each message on arrival; report the time from sending to arrival in ns."""
    connection = V2Client(port).socket
    connection.settimeout(None)
    connection.sendall(sub(TOPIC, CHANNEL) + rdy(load.ready_count))
    delivered_ns: list[int] = []
    stream = V2Stream()
    while len(delivered_ns) < load.count:
        data = connection.recv(262_144)
        at_ns = time.monotonic_ns()
        stream.feed(data)
        answers = []
        for kind, frame in stream.frames():
            if kind == FRAME_MESSAGE:
                message = decode_message(frame)
                delivered_ns.append(at_ns - STAMP.unpack_from(message.body)[0])
                answers.append(fin(message.id))
            elif frame == HEARTBEAT:
                answers.append(nop())
        connection.sendall(b"".join(answers))
    results.send(delivered_ns)


def sync_latency(folder: Path, count: int = 200) -> tuple[float, ...]:
    """The time that this disk takes to append 4 KiB and to fdatasync it, as quantiles in ms."""
    taken_ns = []
    with (folder / "sync-latency").open("wb", buffering=0) as file:
        for _ in range(count):
            began = time.monotonic_ns()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken_ns.append(time.monotonic_ns() - began)
    return quantiles(taken_ns)


def measure(load: Load) -> Latency:
    """Run once, against a new nsqd with its defaults."""
    with tempfile.TemporaryDirectory(prefix="sparq-latency-") as folder:
        sync_ms = sync_latency(Path(folder))
        with spawn_nsqd(Path(folder)) as server:
            return measure_on(server, load, sync_ms)


def measure_on(server: Server, load: Load, sync_ms: tuple[float, ...]) -> Latency:
    server.post(f"/topic/create?topic={TOPIC}")
    server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
    spawn = multiprocessing.get_context("spawn")
    answered, to_answered = spawn.Pipe(duplex=False)
    delivered, to_delivered = spawn.Pipe(duplex=False)
    processes = [
        spawn.Process(target=consume, args=(server.tcp_port, load, to_delivered), daemon=True),
        spawn.Process(target=publish, args=(server.tcp_port, load, to_answered), daemon=True),
    ]
    meter = Meter(server.pid).start()
    for process in processes:
        process.start()
    answered_ns, delivered_ns = answered.recv(), delivered.recv()
    for process in processes:
        process.join()
    return Latency(
        delivered_ms=quantiles(delivered_ns[load.warm_up :]),
        answered_ms=quantiles(answered_ns[load.warm_up :]),
        sync_ms=sync_ms,
        server_cpu_us=meter.stop().cpu * 1e6 / load.count,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if the promise does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--ready-count", type=int, default=100)
    parser.add_argument("--body-size", type=int, default=200)
    options = parser.parse_args(arguments)
    found = measure(Load(options.seconds, options.rate, options.ready_count, options.body_size))
    print("\n".join(found.lines()))
    verdict = "holds" if found.holds else "DOES NOT HOLD"
    print(f"p50 under {P50_MS_MAX:g} ms, p99 under {P99_MS_MAX:g} ms: {verdict}")
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
