"""A small cluster and its possible troubles: each one is caused for real, and ended.

A trouble is a context manager: entering it makes alerts fire, leaving it makes them stop.
`TROUBLES` lists the alerts of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from sparq.client import Consumer, Message
from sparq.protocol.commands import mpub, pub, rdy, sub
from tests.scenarios.deploy.alerting import Prometheus
from tests.support import strace
from tests.support.servers import (
    AdminServer,
    NsqdServer,
    Server,
    spawn_nsqd,
    spawn_nsqlookupd,
    start_first,
)
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, V2Client, fin_each
from tests.support.waiting import until, wait_for

PAUSE_SECONDS = 0.1
"""The interval of actions that are repeated during a trouble."""
STRACE = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync")
SECONDS_MAX = 30


class GrowingDisk(SmallDisk):
    """A disk whose size can be changed."""

    def resize(self, size: str) -> None:
        """Set the size of the disk."""
        # Named completely: else `mount` repeats options that an ordinary user's namespace refuses.
        options = ("-t", "tmpfs", "-o", f"remount,size={size}")
        mount = ("mount", *options, "tmpfs", str(self.folder))
        subprocess.run([*self.prefix, *mount], check=True, timeout=SECONDS_MAX)

    def free_bytes(self) -> int:
        """The free space."""
        facts = os.statvfs(self.seen)
        return facts.f_bavail * facts.f_frsize


class Cluster:
    """Four nsqds for different troubles, three nsqlookupds, an nsqadmin and a Prometheus.

    Attributes:
        main: its channels are in trouble.
        doomed: is killed.
        behind: has a lag limit and a slow disk, and leaves an nsqlookupd.
        full: has a separate disk, which becomes small.
    """

    def __init__(self, folder: Path) -> None:
        with ExitStack() as stack:
            names = ("lookup-1", "lookup-2", "lookup-3")
            self.lookups = [
                stack.enter_context(spawn_nsqlookupd(folder, name=name)) for name in names
            ]
            places = tuple(self.lookups)
            self.disk = stack.enter_context(GrowingDisk(folder / "full", "2g"))

            def nsqd(name: str, *flags: str, prefix: tuple[str, ...] = ()) -> NsqdServer:
                spawned = spawn_nsqd(folder, *flags, lookupds=places, name=name, prefix=prefix)
                return stack.enter_context(spawned)

            latency = "--e2e-processing-latency-percentile=0.99"
            self.main = nsqd("main", "--msg-timeout=1s", latency)
            self.doomed = nsqd("doomed")
            limits = ("--max-bytes-per-file=20000", "--max-channel-lag-bytes=40000")
            self.behind = nsqd("behind", *limits)
            self.full = nsqd("full", prefix=self.disk.prefix)
            self.admin = stack.enter_context(admin_of(folder / "admin", self.lookups))
            home = folder / "prometheus"
            home.mkdir()
            nsqds = (self.main, self.doomed, self.behind, self.full)
            jobs = {"nsqd": nsqds, "nsqlookupd": places, "nsqadmin": (self.admin,)}
            self.prometheus = stack.enter_context(Prometheus(home, jobs))
            self.prometheus.start()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def missing_for_strace() -> str:
    """What prevents strace from tracing a running process, as "needs ..."; empty: nothing."""
    if lack := strace.missing():
        return lack
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() and scope.exists() and scope.read_text().strip() != "0":
        return "needs the right to trace its own processes (ptrace)"
    return ""


def admin_of(folder: Path, lookups: list[Server]) -> Server:
    """Start an nsqadmin that uses these nsqlookupds."""
    folder.mkdir()
    places = tuple(f"--lookupd-http-address={lookup.http}" for lookup in lookups)
    admin = AdminServer("sparq.nsqadmin", folder, places)
    start_first(admin)
    return admin


@contextmanager
def repeatedly(act: Callable[[], object]) -> Iterator[None]:
    """Repeat an action in a thread, as another program would; re-raises its exception."""
    stop, raised = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stop.wait(PAUSE_SECONDS):
                act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if raised:
        raise raised[0]


def channel(nsqd: NsqdServer, topic: str) -> None:
    """Create a topic with the channel c."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")


@contextmanager
def killed_daemons(cluster: Cluster) -> Iterator[None]:
    """kill -9 an nsqd, an nsqlookupd and nsqadmin, and damage a message of that nsqd.

    Before that the nsqd is restarted repeatedly, each time after Prometheus has seen it running.
    """
    nsqd, *others = (cluster.doomed, cluster.lookups[2], cluster.admin)
    channel(nsqd, "hurt")
    with V2Client(nsqd) as line:
        for body in (b"before", b"DAMAGED", b"after"):
            assert line.ask(pub("hurt", body)) == OK
    while "NsqdRestarting" not in cluster.prometheus.has_fired():
        before = cluster.prometheus.ask(started_at(nsqd))
        nsqd.kill9()
        damage(nsqd.folder, b"DAMAGED")
        nsqd.start()
        wait_for(partial(is_scraped_again, cluster.prometheus, nsqd, before), SECONDS_MAX)
    for server in (nsqd, *others):
        server.kill9()
    yield
    for server in (nsqd, *others):
        server.start()
    nsqd.post("/topic/delete?topic=hurt")


def damage(folder: Path, body: bytes) -> None:
    """Flip a bit of a message where it is stored."""
    for path in folder.rglob("*.log"):
        stored = bytearray(path.read_bytes())
        if (at := stored.find(body)) >= 0:
            stored[at] ^= 1
            path.write_bytes(stored)


def started_at(nsqd: NsqdServer) -> str:
    """The PromQL query for the time when an nsqd was started."""
    return f'nsqd_start_time_seconds{{instance="{nsqd.http}"}}'


def is_scraped_again(prometheus: Prometheus, nsqd: NsqdServer, before: list[Any]) -> bool:
    """Whether Prometheus has another start time for the nsqd than before."""
    found = prometheus.ask(started_at(nsqd))
    return bool(found) and found[0]["value"][1] != before[0]["value"][1]


@contextmanager
def forgotten_nsqlookupd(cluster: Cluster) -> Iterator[None]:
    """Remove an nsqlookupd from an nsqd's list at run time; later restore the list."""
    places = [lookup.tcp for lookup in cluster.lookups]

    def set_lookupds(addresses: list[str]) -> None:
        path, body = "/config/nsqlookupd_tcp_addresses", json.dumps(addresses).encode()
        assert cluster.behind.request("PUT", path, body)[0] == 200

    set_lookupds(places[1:])
    yield
    set_lookupds(places)


@contextmanager
def slow_disk(cluster: Cluster) -> Iterator[None]:
    """Delay each sync by 1 s, while messages are published."""
    nsqd = cluster.behind
    effect = "inject=fdatasync:delay_enter=1000000"
    tracer = subprocess.Popen([*STRACE, "-e", effect, "-p", str(nsqd.pid)])
    try:
        with repeatedly(lambda: nsqd.post("/pub?topic=slow", b"x")):
            yield
            tracer.send_signal(signal.SIGINT)
            tracer.wait(SECONDS_MAX)
    finally:
        tracer.kill()
        tracer.wait(SECONDS_MAX)


@contextmanager
def lag_limit(cluster: Cluster) -> Iterator[None]:
    """Exceed the lag limit of a channel without consumers, once Prometheus knows it."""
    channel(cluster.behind, "limited")
    series = 'nsqd_channel_voided_total{topic="limited"}'
    wait_for(partial(cluster.prometheus.ask, series), SECONDS_MAX)
    for _ in range(30):
        cluster.behind.post("/pub?topic=limited", b"x" * 6000)
    yield
    cluster.behind.post("/topic/delete?topic=limited")


@contextmanager
def full_disk(cluster: Cluster) -> Iterator[None]:
    """Make the disk small and fill it: first by publishing, then by ballast.

    Consumers then finish every other message, and these gaps take space in the ledger. At the end
    the disk grows.
    """
    nsqd, disk = cluster.full, cluster.disk
    channel(nsqd, "big")
    disk.resize("40m")
    with V2Client(nsqd) as line:
        while line.ask(mpub("big", [b"x" * 4000] * 50)) == OK:
            pass
        disk.ballast(disk.free_bytes())
        assert line.ask(sub("big", "c")) == OK
        line.send(rdy(2000))
        line.send(fin_each(line.messages(2000)[::2]))
        wait_for(lambda: "NOK" in nsqd.request("GET", "/ping")[1].decode(), SECONDS_MAX)
    yield
    disk.drop_ballast()
    disk.resize("2g")
    nsqd.post("/topic/delete?topic=big")


@contextmanager
def paused(cluster: Cluster) -> Iterator[None]:
    """Pause a channel and a topic while messages are published."""
    nsqd = cluster.main
    for topic in ("held", "shut"):
        channel(nsqd, topic)
    nsqd.post("/channel/pause?topic=held&channel=c")
    nsqd.post("/topic/pause?topic=shut")

    def publish() -> None:
        for topic in ("held", "shut"):
            nsqd.post(f"/mpub?topic={topic}", b"x\n" * 200)

    with repeatedly(publish):
        yield
    nsqd.post("/channel/unpause?topic=held&channel=c")
    nsqd.post("/topic/unpause?topic=shut")
    for topic in ("held", "shut"):
        nsqd.post(f"/topic/delete?topic={topic}")


@contextmanager
def bad_consumers(cluster: Cluster) -> Iterator[None]:
    """Let one consumer receive messages without responding, and another requeue all."""
    nsqd = cluster.main
    for topic in ("silent", "returned"):
        channel(nsqd, topic)
        nsqd.post(f"/mpub?topic={topic}", b"x\n" * 5)
    with V2Client(nsqd) as silent, V2Client(nsqd) as returning:
        for line, topic in ((silent, "silent"), (returning, "returned")):
            assert line.ask(sub(topic, "c")) == OK
            line.send(rdy(2))

        def give_back() -> None:
            for message in returning.messages_within(PAUSE_SECONDS):
                returning.send(b"REQ %s 0\n" % message.id)

        with repeatedly(give_back):
            yield
    for topic in ("silent", "returned"):
        nsqd.post(f"/topic/delete?topic={topic}")


@contextmanager
def dead_letters(cluster: Cluster) -> Iterator[None]:
    """Let a handler fail, so that its consumer makes the message a dead letter."""
    nsqd = cluster.main
    channel(nsqd, "orders")
    nsqd.post("/pub?topic=orders", b"wrong")

    async def fail(message: Message) -> None:
        raise ValueError(message.body)

    async def consume() -> None:
        consumer = Consumer(
            *("orders", "c"),
            nsqd_tcp_addresses=[nsqd.tcp],
            handler=fail,
            max_attempts=1,
            default_requeue_delay=0,
            max_backoff_duration=0,
            dead_letter="orders.dead",
        )
        async with consumer:
            await until(lambda: depth(nsqd, "orders.dead") > 0, SECONDS_MAX)

    asyncio.run(consume())
    yield


def depth(nsqd: NsqdServer, topic: str) -> int:
    """The depth of a topic without channels."""
    stats = nsqd.get_json(f"/stats?format=json&topic={topic}")
    return sum(int(one["depth"]) for one in stats["topics"] or ())


Trouble = Callable[[Cluster], AbstractContextManager[None]]

TROUBLES: dict[Trouble, set[str]] = {
    killed_daemons: {
        *("NsqdDown", "NsqlookupdDown", "NsqadminDown"),
        *("NsqdRestarting", "NsqdLeft", "NsqMessagesDamaged"),
    },
    forgotten_nsqlookupd: {"NsqlookupdsDisagree", "NsqdLeft"},
    lag_limit: {"NsqMessagesVoided"},
    slow_disk: {"NsqdDiskSlow"},
    full_disk: {
        *("NsqdRefusesPublishes", "NsqdDiskNearlyFull", "NsqdDiskFillsUp"),
        "NsqdReserveTooSmall",
    },
    paused: {
        *("NsqChannelDepthGrows", "NsqChannelMessageTooOld", "NsqChannelWithoutConsumers"),
        *("NsqChannelPaused", "NsqTopicPaused"),
    },
    bad_consumers: {"NsqChannelStuck", "NsqChannelTimeouts", "NsqChannelRequeues"},
    dead_letters: {"NsqDeadLetters"},
}
"""Each trouble, with the alerts that it makes fire."""
