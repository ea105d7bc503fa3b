"""docs/operating.md: its cluster is started, changed, restarted, copied, and left for Go's nsqd.

The commands are those of the page; only ports and folders differ.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from bench.peers import go_nsqd

from sparq.client import Consumer, Message, Producer
from sparq.protocol.commands import pub
from sparq.tools.commands import nsq_check
from tests.scenarios.docs.examples import command_lines, is_accepted
from tests.support.servers import GoServer, NsqdServer, Server, free_port, spawn_nsqd, start_first
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
QUICK: dict[str, Any] = {
    "lookupd_poll_interval": 0.2,
    "lookupd_poll_jitter": 0.0,
    "max_reconnect_delay": 0.2,
    "max_in_flight": 100,
}
READY_SECONDS = 20.0
PAUSE_SECONDS = 0.002
"""The time between two publishes: the tests are about continuity, not about speed."""
STARTS_MAX = 3


class Cluster:
    """The page's cluster: two nsqlookupds, and two nsqds that register with both."""

    def __init__(self, folder: Path) -> None:
        text, *_ = blocks("console")
        ports = {port: free_port() for port in set(re.findall(r":(\d{4})\b", text))}
        text = re.sub(r":(\d{4})\b", lambda found: f":{ports[found[1]]}", text)
        servers = [daemon(line.removeprefix("$ "), folder) for line in text.splitlines()]
        self.nsqds = [server for server in servers if isinstance(server, NsqdServer)]
        self.lookupds = [server for server in servers if server not in self.nsqds]

    def start(self) -> Self:
        """Start all, and wait until each answers."""
        servers = (*self.lookupds, *self.nsqds)
        try:
            for server in servers:
                server.launch()
            for server in servers:
                server.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self.nsqds, *self.lookupds):
            server.close()

    def listed(self, query: str) -> list[set[int]]:
        """The TCP ports of the nsqds in each nsqlookupd's response."""
        answers = [lookupd.get_json(query)["producers"] for lookupd in self.lookupds]
        return [{producer["tcp_port"] for producer in answer} for answer in answers]


def daemon(command: str, folder: Path) -> Server:
    """The server of a command line of the page, not started yet."""
    program, *words = shlex.split(command)
    flags = dict(word.removeprefix("--").split("=") for word in words)
    kind = NsqdServer if program == "nsqd" else Server
    own = tuple(word for word in words if not word.startswith(("--tcp-", "--http-")))
    server = kind(f"sparq.{program}", folder, own)
    server.tcp = flags["tcp-address"]
    server.tcp_port, server.http_port = (
        int(at.rpartition(":")[2]) for at in (server.tcp, flags["http-address"])
    )
    server.log = folder / f"{server.tcp_port}.log"
    (folder / flags.get("data-path", "")).mkdir(exist_ok=True)
    return server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for all tests; each leaves it running, and uses a separate topic."""
    with started(tmp_path_factory) as servers:
        yield servers


def started(folders: pytest.TempPathFactory) -> Cluster:
    """Start the cluster; try other ports if another process has taken one meanwhile."""
    for _ in range(STARTS_MAX - 1):
        try:
            return Cluster(folders.mktemp("cluster")).start()
        except AssertionError as error:
            if "address already in use" not in str(error):
                raise
    return Cluster(folders.mktemp("cluster")).start()


@asynccontextmanager
async def consumed(topic: str, lookupds: list[Server]) -> AsyncIterator[Counter[bytes]]:
    """Run a consumer that knows only the nsqlookupds; yields how often it handles each body."""
    bodies: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        bodies[message.body] += 1

    places = [lookupd.http for lookupd in lookupds]
    consumer = Consumer(topic, "c", lookupd_http_addresses=places, handler=handle, **QUICK)
    async with consumer:
        yield bodies


def empty(server: NsqdServer, topic: str) -> bool:
    """Whether the channel is empty, checked as the page describes."""
    channel = server.channel(topic, "c")
    return not sum(channel[key] for key in ("depth", "in_flight_count", "deferred_count"))


def create_topic_and_channel(server: Server, topic: str) -> None:
    """Create the topic and its channel."""
    server.post(f"/topic/create?topic={topic}")
    server.post(f"/channel/create?topic={topic}&channel=c")


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(TEXT) if kind == language]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for at most READY_SECONDS."""
    asyncio.run(until(condition, READY_SECONDS))


def test_each_nsqlookupd_lists_both_nsqds(cluster: Cluster) -> None:
    """With the page's four commands, each nsqlookupd lists both nsqds."""
    both = {nsqd.tcp_port for nsqd in cluster.nsqds}

    wait_for(lambda: [both, both] == cluster.listed("/nodes"))


def test_every_file_to_install_exists() -> None:
    """The files of deploy/ and locks/ in the page's shell lines exist."""
    named = re.findall(r"\b((?:deploy|locks)/[\w./*-]+)", "\n".join(blocks("")))

    assert len(named) >= 4
    assert [] == [name for name in named if not list(ROOT.glob(name))]


def test_tools_accept_the_pages_flags() -> None:
    """`sparq top` accepts the flags that the page gives it."""
    lines = command_lines("operating.md")

    assert {"top"} == set(lines)
    assert all(is_accepted(name, words) for name, words in lines.items())


async def test_a_rolling_restart_loses_nothing(cluster: Cluster) -> None:
    """Restarting all four daemons in turn loses nothing.

    A producer and a consumer work on without intervention.
    """
    for nsqd in cluster.nsqds:
        create_topic_and_channel(nsqd, "rolling")
    sent: list[bytes] = []
    places = [nsqd.tcp for nsqd in cluster.nsqds]
    async with (
        consumed("rolling", cluster.lookupds) as bodies,
        Producer(places, **QUICK) as producer,
    ):

        async def publish() -> None:
            while True:
                body = b"%d" % len(sent)
                await producer.publish("rolling", body)
                sent.append(body)
                await asyncio.sleep(PAUSE_SECONDS)  # a realistic pace

        publishing = asyncio.create_task(publish())
        for server in (*cluster.lookupds, *cluster.nsqds):
            await asyncio.to_thread(server.restart, gracefully=True)
            wanted = len(sent) + 20
            await until(partial(is_longer, sent, wanted))
        publishing.cancel()
        await until(lambda: len(bodies) >= len(sent) and bodies.keys() >= set(sent), READY_SECONDS)

    assert len(sent) > 80


async def test_an_nsqd_is_removed(cluster: Cluster) -> None:
    """An nsqd that was emptied and stopped is unlisted immediately; consumers use the other one."""
    leaving, staying = cluster.nsqds
    for nsqd in cluster.nsqds:
        create_topic_and_channel(nsqd, "less")
    async with Producer(leaving.tcp) as producer:
        await producer.multi_publish("less", [b"%d" % n for n in range(500)])
    async with consumed("less", cluster.lookupds) as bodies:
        await until(lambda: empty(leaving, "less"))
        await asyncio.to_thread(leaving.terminate)
        try:
            assert [{staying.tcp_port}] * 2 == cluster.listed("/lookup?topic=less")
            staying.post("/pub?topic=less", b"after")
            await until(lambda: b"after" in bodies)
        finally:
            await asyncio.to_thread(leaving.start)

    assert {1} == set(bodies.values())
    assert 501 == len(bodies)


def is_longer(found: list[bytes], wanted: int) -> bool:
    """Whether there are more than `wanted`."""
    return len(found) > wanted


class Publishing:
    """Publishes to topic "t" until it is stopped.

    Attributes:
        acknowledged: the bodies that nsqd has answered with OK.
    """

    def __init__(self, server: NsqdServer) -> None:
        self.acknowledged: list[bytes] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with V2Client(self._server) as line:
            while not self._stop.wait(PAUSE_SECONDS):
                body = b"%d" % len(self.acknowledged)
                assert line.ask(pub("t", body)) == OK
                self.acknowledged.append(body)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_copy_of_a_suspended_nsqd_works_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    """A copy made under load, between kill -STOP and kill -CONT, is valid and complete.

    An nsqd started on the copy elsewhere is discovered, and assigns no id that the original has
    assigned since.
    """
    lookupds = tuple(cluster.lookupds)
    with spawn_nsqd(tmp_path) as server:
        create_topic_and_channel(server, "t")
        publishing = Publishing(server)
        wait_for(lambda: len(publishing.acknowledged) > 100)
        os.kill(server.pid, signal.SIGSTOP)
        before = list(publishing.acknowledged)
        shutil.copytree(tmp_path / "nsqd", tmp_path / "copy")
        os.kill(server.pid, signal.SIGCONT)
        wait_for(lambda: len(publishing.acknowledged) > len(before) + 20)
        publishing.stop()
        given = ids(server)

    assert 0 == nsq_check([str(tmp_path / "copy")])
    with spawn_nsqd(tmp_path, lookupds=lookupds, name="copy") as restored:
        restored.post("/pub?topic=t", b"new")
        wait_for(lambda: [{restored.tcp_port}] * 2 == cluster.listed("/lookup?topic=t"))
        found = ids(restored)

    assert before == list(found)[: len(before)]
    assert all(given[body] == found[body] for body in before)
    assert found[b"new"] not in given.values()


def ids(server: NsqdServer) -> dict[bytes, bytes]:
    """The ids of the channel's messages, by body; none is finished."""
    count = server.channel("t", "c")["depth"]
    with V2Client(server) as line:
        assert line.ask(b"SUB t c\n") == OK
        line.send(b"RDY %d\n" % count)
        return {message.body: message.id for message in line.messages(count)}


async def test_going_back_to_gos_nsqd(cluster: Cluster, tmp_path: Path) -> None:
    """With Go's nsqd next to sparq's, a consumer empties sparq's and continues with Go's."""
    if why := go_nsqd.missing():
        pytest.skip(why)
    places = [f"--lookupd-tcp-address={lookupd.tcp}" for lookupd in cluster.lookupds]
    config = tmp_path / "nsqd.toml"  # it has keys that only sparq knows, too
    config.write_text('max_topics = 3\nhttp_token = "s"\nmsg_timeout = "90s"\n')
    own = (f"--config={config}", f"--data-path={tmp_path}", "--broadcast-address=127.0.0.1")
    ours = cluster.nsqds[0]
    create_topic_and_channel(ours, "back")
    async with Producer(ours.tcp) as producer:
        await producer.multi_publish("back", [b"%d" % n for n in range(500)])
    with GoServer(go_nsqd.path(), tmp_path, (*own, *places)) as go:
        await asyncio.to_thread(start_first, go)
        create_topic_and_channel(go, "back")
        async with consumed("back", cluster.lookupds) as bodies:
            go.post("/pub?topic=back", b"there")
            await until(lambda: len(bodies) == 501 and empty(ours, "back"), READY_SECONDS)

    assert {1} == set(bodies.values())
