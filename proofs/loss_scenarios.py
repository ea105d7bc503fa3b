"""Nine scenarios in which Go's nsqd loses messages. sparq's nsqd must not lose any.

A scenario (`Scenario`) starts a daemon, repeats the steps in which users have lost messages, and
counts the losses. It is the same for every kind of daemon. The numbers L1 to L9 are those of the
list of NSQ's losses; each scenario names the issues of nsqio/nsq that report it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, V2Client

from proofs.daemon_fixture import wait_until
from proofs.scenario_daemons import Maker, ScenarioDaemon, collect, wait_depth, wait_written
from sparq.protocol.commands import dpub, mpub, pub, rdy, sub

TOPIC, CHANNEL = "t", "c"
ON_DISK = "--mem-queue-size=0"
"""NSQ's own recommendation for messages that must be on disk."""
DEFER_SECONDS = 6.0
DUE_SECONDS_MAX = 20.0
SYNC_CALLS = "fsync,fdatasync"


class Loss(NamedTuple):
    """Result of a scenario: number of lost messages, or of other violations that the text names."""

    lost: int
    text: str


class Needs(Exception):
    """The machine lacks a requirement; the message is "needs ..."."""


class Scenario(NamedTuple):
    """A scenario: one way to lose messages."""

    number: str
    title: str
    issues: str
    show: Callable[[Maker, Path], Loss]


def channel_of(server: ScenarioDaemon, topic: str = TOPIC) -> None:
    """Create a topic with a channel."""
    server.post(f"/topic/create?topic={topic}")
    server.post(f"/channel/create?topic={topic}&channel={CHANNEL}")


def bodies(count: int, size: int = 200) -> list[bytes]:
    """`count` different bodies of `size` bytes."""
    return [b"%06d " % number + b"x" * (size - 7) for number in range(count)]


def publish(line: V2Client, sent: list[bytes]) -> None:
    """Publish one PUB at a time, and wait for each OK."""
    for body in sent:
        assert line.ask(pub(TOPIC, body)) == OK


def lost_of(sent: list[bytes], server: ScenarioDaemon) -> int:
    """Number of these messages that the channel does not deliver."""
    return len(set(sent) - {one.body for one in collect(server, TOPIC, CHANNEL)})


def killed_in_memory(make: Maker, folder: Path) -> Loss:
    """L1: 2,000 messages are acknowledged, then nsqd is killed."""
    sent = bodies(2000)
    with make(folder) as server:
        channel_of(server)
        with V2Client(server) as line:
            for first in range(0, len(sent), 100):
                assert line.ask(mpub(TOPIC, sent[first : first + 100])) == OK
        server.restart()
        lost = lost_of(sent, server)
    return Loss(lost, f"{lost:,} of {len(sent):,} acknowledged messages lost by kill -9")


def killed_in_flight(make: Maker, folder: Path) -> Loss:
    """L2: messages are stored on disk and in flight when nsqd is killed."""
    sent, taken = bodies(500), 100
    with make(folder, ON_DISK) as server:
        channel_of(server)
        with V2Client(server) as line:
            publish(line, sent)
        wait_depth(server, TOPIC, CHANNEL, len(sent))
        with V2Client(server) as consumer:
            assert consumer.ask(sub(TOPIC, CHANNEL)) == OK
            consumer.send(rdy(taken))
            consumer.messages(taken)
            wait_written_below(server, len(sent) - taken)
            server.kill9()
        server.start()
        lost = lost_of(sent, server)
    return Loss(lost, f"{lost:,} of {taken:,} messages in flight lost by kill -9")


def wait_written_below(server: ScenarioDaemon, depth: int) -> None:
    """Wait until the daemon has recorded its deliveries on disk; it may read one message ahead."""
    wait_until(
        lambda: any(server.has_written_state(TOPIC, CHANNEL, depth - ahead) for ahead in (0, 1)),
        "written",
    )


def restarted_with_deferred(make: Maker, folder: Path) -> Loss:
    """L3: nsqd is restarted with a clean stop while deferred messages wait."""
    sent = bodies(10)
    with make(folder) as server:
        channel_of(server)
        with V2Client(server) as line:
            for body in sent:
                assert line.ask(dpub(TOPIC, int(1000 * DEFER_SECONDS), body)) == OK
        due = time.monotonic() + DEFER_SECONDS
        server.restart(gracefully=True)
        came: dict[bytes, float] = {}
        with V2Client(server) as line:
            assert line.ask(sub(TOPIC, CHANNEL)) == OK
            line.send(rdy(100))
            while len(came) < len(sent) and time.monotonic() < due + DUE_SECONDS_MAX:
                for one in line.messages_within(0.05):
                    came.setdefault(one.body, time.monotonic())
    # All were sent before `due`, and each was due DEFER_SECONDS after it was sent.
    early = sum(at < due - DEFER_SECONDS / 4 for at in came.values())
    lost = len(sent) - len(came)
    return Loss(early + lost, f"of 10 deferred messages {early} delivered early, {lost} lost")


def damaged_length(make: Maker, folder: Path) -> Loss:
    """L4: one bit of the length of one message flips on disk."""
    sent = bodies(100)
    with make(folder, ON_DISK) as server:
        channel_of(server)
        with V2Client(server) as line:
            publish(line, sent)
        wait_depth(server, TOPIC, CHANNEL, len(sent))
        server.terminate()
        server.damage_length(20)
        server.start()
        lost = lost_of(sent, server)
    return Loss(max(0, lost - 1), f"{max(0, lost - 1)} messages lost beside the damaged one")


def disk_full(make: Maker, folder: Path) -> Loss:
    """L5: the disk fills up while messages are published."""
    sent: list[bytes] = []
    with small_disk(folder, "24m") as small, on_small_disk(make, folder, small) as server:
        channel_of(server)
        with V2Client(server) as line:
            for body in bodies(800, 1 << 16):
                if line.ask(pub(TOPIC, body)) != OK:
                    break
                sent.append(body)
        lost = lost_of(sent, server)
    return Loss(lost, f"{lost:,} of {len(sent):,} messages lost that were acknowledged")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """A file system of this size for an nsqd.

    Raises:
        Needs: the machine cannot create one.
    """
    try:
        disk = SmallDisk(folder / "small", size)
    except pytest.skip.Exception as skip:
        raise Needs(str(skip)) from skip
    with disk:
        yield disk


def on_small_disk(make: Maker, folder: Path, small: SmallDisk) -> ScenarioDaemon:
    """A daemon with its data path on the small file system."""
    return make(folder, ON_DISK, prefix=small.prefix, data=small.folder)


def sync_fails(make: Maker, folder: Path) -> Loss:
    """L6: every sync fails. With --sync-every=1, each OK without a sync is a violation."""
    if shutil.which("strace") is None:
        raise Needs("needs strace")
    sent = bodies(20)
    with make(folder, ON_DISK, "--sync-every=1") as server:
        channel_of(server)
        with V2Client(server) as line:
            assert line.ask(pub(TOPIC, b"while syncs succeed")) == OK
            with failing_syncs(server.pid, folder):
                acknowledged = sum(line.ask(pub(TOPIC, body)) == OK for body in sent)
    return Loss(
        acknowledged, f"{acknowledged} of {len(sent)} messages acknowledged while no sync succeeds"
    )


@contextmanager
def failing_syncs(pid: int, folder: Path) -> Iterator[None]:
    """Make every sync of the process fail with EIO.

    Raises:
        Needs: this process may not trace that one.
    """
    said = folder / "strace.txt"
    words = ["strace", "-f", "-p", str(pid), "-o", "/dev/null"]
    words += ["-e", f"trace={SYNC_CALLS}", "-e", f"inject={SYNC_CALLS}:error=EIO"]
    with said.open("wb") as file:
        tracer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=file)
    try:
        wait_until(lambda: "attached" in said.read_text() or tracer.poll() is not None, "traced")
        if tracer.poll() is not None:
            raise Needs("needs leave to trace processes")
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)


def channel_unwritable(make: Maker, folder: Path) -> Loss:
    """L7: a message cannot be copied to a channel's own queue on disk."""
    sent = bodies(50)
    with make(folder, ON_DISK) as server:
        channel_of(server)
        obstacle = server.data / f"{TOPIC}:{CHANNEL}.diskqueue.000000.dat"
        obstacle.mkdir()
        with V2Client(server) as line:
            publish(line, sent)
        wait_until(lambda: topic_depth(server) == 0, "handed to the channel")
        obstacle.rmdir()
        lost = lost_of(sent, server)
    return Loss(lost, f"{lost} of {len(sent)} acknowledged messages lost on their way to a channel")


def topic_depth(server: ScenarioDaemon) -> int:
    """Number of messages that wait in the topic itself, not in a channel."""
    (topic,) = server.get_json(f"/stats?format=json&topic={TOPIC}")["topics"]
    return int(topic["depth"])


def mpub_split(make: Maker, folder: Path) -> Loss:
    """L8: an MPUB is refused half-way. Its sender will send all of it again.

    So each message of it that is delivered is a violation.
    """
    sent = bodies(30, 100_000)
    with small_disk(folder, "16m") as small, on_small_disk(make, folder, small) as server:
        server.post(f"/topic/create?topic={TOPIC}")
        with V2Client(server) as line:
            assert line.ask(pub(TOPIC, b"the topic's file is there")) == OK
            small.ballast(free_bytes(small) - 1_500_000)
            refused = line.ask(mpub(TOPIC, sent)) != OK
        assert refused, "the disk was not full"
        small.drop_ballast()
        server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        came = {one.body for one in collect(server, TOPIC, CHANNEL)} & set(sent)
    return Loss(len(came), f"{len(came)} of {len(sent)} messages of a refused MPUB delivered")


def free_bytes(small: SmallDisk) -> int:
    """Free bytes of the small file system."""
    return shutil.disk_usage(small.seen).free


def attempts_forgotten(make: Maker, folder: Path) -> Loss:
    """L9: a message is in its third attempt when nsqd is killed."""
    with make(folder, ON_DISK) as server:
        channel_of(server)
        with V2Client(server) as line:
            publish(line, [b"poison"])
        wait_depth(server, TOPIC, CHANNEL, 1)
        wait_written(server, TOPIC, CHANNEL, 1)
        with V2Client(server) as consumer:
            assert consumer.ask(sub(TOPIC, CHANNEL)) == OK
            consumer.send(rdy(1))
            for attempt in (1, 2, 3):
                (one,) = consumer.messages(1)
                assert one.attempts == attempt
                if attempt < 3:
                    consumer.send(b"REQ %s 0\n" % one.id)
            server.kill9()
        server.start()
        came = collect(server, TOPIC, CHANNEL)
    if not came:
        return Loss(1, "the message is gone")
    lost = 4 - came[0].attempts
    return Loss(max(0, lost), f"comes as attempt {came[0].attempts}, which is the fourth")


SCENARIOS = (
    Scenario("L1", "killed with messages in memory", "#755", killed_in_memory),
    Scenario("L2", "killed with messages in flight", "#1142 #1386 #1391", killed_in_flight),
    Scenario("L3", "restarted with deferred messages", "#674 #871 #1107", restarted_with_deferred),
    Scenario("L4", "a damaged length on disk", "#471 #1491 #1514", damaged_length),
    Scenario("L5", "a full disk", "#1231 #594 #938", disk_full),
    Scenario("L6", "syncs that fail", "", sync_fails),
    Scenario("L7", "a channel that cannot be written", "", channel_unwritable),
    Scenario("L8", "an MPUB refused half-way", "", mpub_split),
    Scenario("L9", "attempts of a message in flight", "", attempts_forgotten),
)


def run_scenario(scenario: Scenario, make: Maker) -> Loss:
    """Run a scenario with one kind of daemon, in a folder of its own.

    Raises:
        Needs: the machine lacks a requirement.
    """
    with tempfile.TemporaryDirectory(prefix="sparq-museum-") as folder:
        return scenario.show(make, Path(folder))
