"""Tests of unmodified foreign clients with nsqd, feature by feature.

A client is a script under `clients/` that runs as a separate process and prints its deliveries.
nsqd's /stats, and a proxy that records the client's bytes, show what nsqd received. `matrix` lists
which client has which feature.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.client.authd import SECRET, running_authd
from tests.scenarios.interop import matrix
from tests.scenarios.interop.environments import Missing
from tests.scenarios.interop.matrix import cell
from tests.scenarios.interop.proxy import Proxy
from tests.scenarios.interop.running import Client, eventually
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.small_disk import SmallDisk

MSG_TIMEOUT_MS = 2000
HEARTBEAT_MS = 1000
ONE_BY_ONE = [f"one {number}" for number in range(20)]
TOGETHER = [f"together {number} é" for number in range(30)]
PLANS = {"again": "requeue", "slow": "timeout", "held": "touch"}
SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"
Start = Callable[..., Client]

pytestmark = pytest.mark.timeout(600)


def job(nsqd: str, topic: str, **wishes: Any) -> dict[str, Any]:
    """Build the job for a script; by default it only consumes."""
    return {
        "nsqd": nsqd,
        "lookupd": None,
        "topic": topic,
        "channel": "interop",
        "publish": [],
        "multi_publish": [],
        "defer": [],
        "defer_ms": 2_000,
        "insist": None,
        "consume": True,
        "max_in_flight": 10,
        "plans": {},
        "msg_timeout_ms": MSG_TIMEOUT_MS,
        "heartbeat_ms": 30_000,
        "tls": None,
        "compression": None,
        "secret": None,
        "requeue_ms": 400,
        "hold_ms": 2 * MSG_TIMEOUT_MS,
        **wishes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def authority_file(authority: trustme.CA, folder: Path) -> str:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return str(folder / "ca.pem")


@pytest.fixture(scope="module")
def lookupd(folder: Path) -> Iterator[Server]:
    with spawn_nsqlookupd(folder) as server:
        yield server


@pytest.fixture(scope="module")
def certified(authority: trustme.CA, folder: Path) -> tuple[str, ...]:
    """Flags that give an nsqd a certificate."""
    file = folder / "server.pem"
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(file)
    return (f"--tls-cert={file}", f"--tls-key={file}", "--https-address=127.0.0.1:0")


@pytest.fixture(scope="module")
def nsqd(lookupd: Server, certified: tuple[str, ...], folder: Path) -> Iterator[NsqdServer]:
    """An nsqd registered with `lookupd`; it offers TLS, but does not require it."""
    flags = (f"--msg-timeout={MSG_TIMEOUT_MS}ms", *certified)
    with spawn_nsqd(folder, *flags, lookupds=(lookupd,)) as server:
        yield server


@pytest.fixture
def start(name: str) -> Iterator[Start]:
    """Return a function that starts the client with a job; the client is killed after the test."""
    with ExitStack() as running:

        def start_client(told: dict[str, Any]) -> Client:
            try:
                client = Client(name, told)
            except Missing as missing:
                pytest.skip(f"needs {missing}")
            running.callback(client.close)
            return client

        yield start_client


def topic_of(name: str, feature: str) -> str:
    return f"{name}.{feature}"


def drained(nsqd: NsqdServer, topic: str) -> dict[str, Any]:
    """Wait until the channel has nothing waiting, in flight or deferred; return its statistics."""
    waiting = ("depth", "in_flight_count", "deferred_count")
    return eventually(
        lambda: nsqd.channel(topic, "interop"),
        lambda channel: bool(channel) and not any(channel[count] for count in waiting),
    )


class JobResult:
    """All deliveries of a client for one job, and nsqd's statistics of its channel afterwards."""

    def __init__(self, client: Client, nsqd: NsqdServer) -> None:
        self.published_after_ms = client.published()["at_ms"]
        told = client.job
        bodies = told["publish"] + told["multi_publish"] + told["defer"]
        again = sum(PLANS.get(body) in ("requeue", "timeout") for body in bodies)
        self.deliveries = client.deliveries(len(bodies) + again)
        self.channel = drained(nsqd, told["topic"])
        self.is_complete = client.silent

    def of(self, *bodies: str) -> list[dict[str, Any]]:
        """The deliveries of these bodies, in the order of arrival."""
        return [delivery for delivery in self.deliveries if delivery["body"] in bodies]

    def attempts(self, *bodies: str) -> list[tuple[str, int]]:
        return sorted((delivery["body"], delivery["attempts"]) for delivery in self.of(*bodies))


@pytest.fixture(scope="module")
def days() -> dict[str, JobResult]:
    """Completed results, by client."""
    return {}


@pytest.fixture
def day(name: str, start: Start, days: dict[str, JobResult], nsqd: NsqdServer) -> JobResult:
    """The result of one job that uses most features."""
    if name not in days:
        told = job(
            nsqd.tcp,
            topic_of(name, "day"),
            publish=[*ONE_BY_ONE, *PLANS],
            multi_publish=TOGETHER,
            defer=[] if (name, "deferred") in matrix.ABSENT else ["later"],
            plans=PLANS,
        )
        days[name] = JobResult(start(told), nsqd)
    return days[name]


@cell("publish")
def test_publish(day: JobResult) -> None:
    """Each message published with PUB is delivered."""
    assert sorted(ONE_BY_ONE) == sorted(delivery["body"] for delivery in day.of(*ONE_BY_ONE))


@cell("mpub")
def test_multi_publish(day: JobResult) -> None:
    """All messages of an MPUB are delivered, byte for byte."""
    assert sorted(TOGETHER) == sorted(delivery["body"] for delivery in day.of(*TOGETHER))


@cell("deferred")
def test_deferred_publish(day: JobResult) -> None:
    """A message published with DPUB is delivered once, and not before it is due."""
    (later,) = day.of("later")

    assert 1 == later["attempts"]
    assert later["at_ms"] >= day.published_after_ms + job("", "")["defer_ms"]


@cell("consume")
def test_consume(day: JobResult) -> None:
    """A finished message is delivered only once, and the channel ends up empty."""
    bodies = ONE_BY_ONE + TOGETHER

    assert sorted((body, 1) for body in bodies) == day.attempts(*bodies)
    assert (1, 1) == (day.channel["requeue_count"], day.channel["timeout_count"])
    assert day.is_complete


@cell("requeue")
def test_requeue(day: JobResult) -> None:
    """A requeued message is redelivered after its delay, with attempts 2."""
    first, second = day.of("again")

    assert [1, 2] == [first["attempts"], second["attempts"]]
    assert second["at_ms"] - first["at_ms"] >= job("", "")["requeue_ms"] - 5
    assert 1 == day.channel["requeue_count"]


@cell("timeout")
def test_timeout(day: JobResult) -> None:
    """A message that is not answered is redelivered after its timeout, with attempts 2."""
    first, second = day.of("slow")

    assert [1, 2] == [first["attempts"], second["attempts"]]
    assert second["at_ms"] >= day.published_after_ms + MSG_TIMEOUT_MS - 20
    assert 1 == day.channel["timeout_count"]


@cell("touch")
def test_touch(day: JobResult) -> None:
    """A touched message stays in flight for twice its timeout, and can then be finished."""
    assert [("held", 1)] == day.attempts("held")
    assert 1 == day.channel["timeout_count"], "but for the message that nobody answers"
    assert day.is_complete


@cell("backoff")
def test_backoff(name: str, start: Start, nsqd: NsqdServer) -> None:
    """After a failure the client sends RDY 0, then RDY 1, and its full RDY count after a FIN."""
    topic = topic_of(name, "backoff")
    with Proxy(nsqd.tcp) as proxy:
        client = start(job(proxy.address, topic, publish=["bad"], plans={"bad": "backoff"}))
        client.published()
        first, second = client.deliveries(2)
        words = eventually(
            lambda: re.findall(rb"RDY \d+|REQ|FIN", proxy.conversation(b"SUB ")),
            lambda words: b"FIN" in words and words[-2:].count(b"RDY 10") == 1,
        )

    failed = words.index(b"REQ")
    probed = words.index(b"RDY 1", failed)
    assert [1, 2] == [first["attempts"], second["attempts"]]
    assert b"RDY 0" in words[failed - 1 : failed + 2], words
    assert b"RDY 10" not in words[failed:probed], words
    assert words.index(b"FIN") > probed, words


@cell("heartbeats")
def test_heartbeats(name: str, start: Start, nsqd: NsqdServer) -> None:
    """An idle connection that answers heartbeats stays open, and delivers a later message."""
    topic = topic_of(name, "idle")
    with Proxy(nsqd.tcp) as proxy:
        client = start(job(proxy.address, topic, heartbeat_ms=HEARTBEAT_MS))
        client.published()
        eventually(lambda: proxy.conversation(b"SUB "), lambda said: said.count(b"NOP\n") >= 3)
        nsqd.post(f"/pub?topic={topic}", b"at last")

        assert ["at last"] == [delivery["body"] for delivery in client.deliveries(1)]
        assert 1 == sum(b"SUB " in sent for sent in proxy.sent)


@cell("discovery")
def test_discovery(name: str, start: Start, nsqd: NsqdServer, lookupd: Server) -> None:
    """A consumer that knows only nsqlookupd's address finds the nsqd that has the topic."""
    topic = topic_of(name, "discovery")
    nsqd.post(f"/topic/create?topic={topic}")
    eventually(lambda: lookupd.get_json("/topics")["topics"], lambda known: topic in known)
    nsqd.post(f"/pub?topic={topic}", b"found")

    client = start(job(nsqd.tcp, topic, lookupd=lookupd.http))
    client.published()

    assert ["found"] == [delivery["body"] for delivery in client.deliveries(1)]
    drained(nsqd, topic)


def over(
    name: str, feature: str, start: Start, nsqd: NsqdServer, **wishes: Any
) -> tuple[dict[str, Any], list[bytes]]:
    """Publish and consume over a layer; return the consumer's /stats and all bytes sent.

    There are many messages, all of which may be in flight, and two that are larger than the largest
    chunk of a compressed stream; most do not compress well.
    """
    topic = topic_of(name, feature)
    size, count = (10_000, 10) if (name, feature) in matrix.FEW_AND_SMALL else (200_000, 1_000)
    large = [secrets.token_hex(size // 2), "large " * (size // 6)]
    many = [secrets.token_hex(250) for _ in range(count)]
    with Proxy(nsqd.tcp) as proxy:
        told = job(proxy.address, topic, publish=large, multi_publish=many, max_in_flight=count)
        client = start({**told, **wishes})
        client.published()
        delivered = client.deliveries(len(large) + len(many))
        consumer = nsqd.channel(topic, "interop")["clients"][0]
        drained(nsqd, topic)
        sent = [bytes(one) for one in proxy.sent]

    assert sorted(large + many) == sorted(delivery["body"] for delivery in delivered)
    assert 2 == len(sent)
    return dict(consumer), sent


COMMAND = re.compile(
    rb"M?PUB [\w.#-]+\n|SUB [\w.#-]+ [\w.#-]+\n|RDY \d+\n|FIN [0-9a-f]{16}\n", re.ASCII
)
"""A full command line: a megabyte of encrypted bytes may contain any four letters by chance."""


def in_the_clear(sent: list[bytes]) -> list[bytes]:
    """Return the commands that appear unencrypted and uncompressed in the bytes sent."""
    return [line for one in sent for line in COMMAND.findall(one)]


@cell("tls")
def test_tls(name: str, start: Start, nsqd: NsqdServer, authority_file: str) -> None:
    """Producer and consumer work over TLS, and no command is sent in the clear."""
    consumer, sent = over(name, "tls", start, nsqd, tls=authority_file)

    assert consumer["tls"] is True
    assert [] == in_the_clear(sent)


@cell("snappy")
def test_snappy(name: str, start: Start, nsqd: NsqdServer) -> None:
    """Producer and consumer work over snappy, which starts directly after the IDENTIFY body."""
    consumer, sent = over(name, "snappy", start, nsqd, compression="snappy")

    assert (True, False) == (consumer["snappy"], consumer["deflate"])
    assert all(b"}" + SNAPPY_START in one for one in sent)


@cell("deflate")
def test_deflate(name: str, start: Start, nsqd: NsqdServer) -> None:
    """Producer and consumer work over deflate, and no command is sent uncompressed."""
    consumer, sent = over(name, "deflate", start, nsqd, compression="deflate")

    assert (False, True) == (consumer["snappy"], consumer["deflate"])
    assert [] == in_the_clear(sent)


@pytest.fixture(scope="module")
def guarded(certified: tuple[str, ...], folder: Path) -> Iterator[NsqdServer]:
    """An nsqd that requires AUTH, and offers TLS."""
    with running_authd() as authd:
        flags = (f"--auth-http-address={authd.address}", *certified)
        with spawn_nsqd(folder, *flags, name="guarded") as server:
            yield server


@cell("auth")
def test_auth(name: str, start: Start, guarded: NsqdServer) -> None:
    """With a secret that the auth server knows, a client can publish and consume."""
    topic = topic_of(name, "auth")
    client = start(job(guarded.tcp, topic, publish=["let in"], secret=SECRET))
    client.published()

    assert ["let in"] == [delivery["body"] for delivery in client.deliveries(1)]
    drained(guarded, topic)


@cell("layers")
def test_tls_deflate_and_auth_together(
    name: str, start: Start, guarded: NsqdServer, authority_file: str
) -> None:
    """A client can use TLS, deflate inside it, and AUTH over both."""
    wishes = {"tls": authority_file, "compression": "deflate", "secret": SECRET}
    consumer, sent = over(name, "layers", start, guarded, **wishes)

    assert (True, True, "somebody") == tuple(
        consumer[of] for of in ("tls", "deflate", "auth_identity")
    )
    assert [] == in_the_clear(sent)


@pytest.fixture(scope="module")
def disk(folder: Path) -> Iterator[SmallDisk]:
    with SmallDisk(folder / "small", "24m") as disk:
        yield disk


@pytest.fixture(scope="module")
def cramped(disk: SmallDisk, folder: Path) -> Iterator[NsqdServer]:
    """An nsqd on a small disk."""
    with spawn_nsqd(folder, name="small", prefix=disk.prefix) as server:
        yield server


@cell("refusal")
def test_refused_publish(name: str, start: Start, cramped: NsqdServer, disk: SmallDisk) -> None:
    """A publish refused by a full disk is reported to the client's user, and succeeds later.

    It succeeds once the disk has space again. Only clients known to do so close their connection.
    """
    topic = topic_of(name, "refusal")
    cramped.post(f"/topic/create?topic={topic}")
    free = os.statvfs(disk.seen)
    disk.ballast(free.f_bavail * free.f_frsize)
    try:
        client = start(job(cramped.tcp, topic, insist="x" * 65_536, consume=False))
        client.published()
        refused = client.next("refused")
    finally:
        disk.drop_ballast()
    last = eventually(
        lambda: client.next("refused", "accepted"), lambda said: said["event"] == "accepted"
    )

    assert last["at_ms"] > refused["at_ms"]
    assert refused["connected"] is (name not in matrix.CLOSES_ON_REFUSAL)
