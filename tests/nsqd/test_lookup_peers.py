"""nsqd and its nsqlookupds: real ones on real sockets, and scripted ones that misbehave."""

import asyncio
import json
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparq.broker.draining import NONE
from sparq.nsqd import lookup_peers
from sparq.nsqd.lookup_peers import LookupPeers, channels_of
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import instant
from tests.support.options import changed
from tests.support.waiting import until


class FakeBroker:
    """The part of a broker that LookupPeers uses."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.changes: deque[tuple[str, str, str | None]] = deque()
        self.known: list[tuple[str, list[str]]] = []
        self.has_lookupd = False
        self.drains = SimpleNamespace(now=NONE)

    def set_has_lookupd(self, has_lookupd: bool) -> None:
        self.has_lookupd = has_lookupd

    def create(self, topic: str, *channels: str) -> None:
        if topic not in self.topics:
            self.topics[topic] = SimpleNamespace(channels={})
            self.changes.append(("created", topic, None))
        for channel in channels:
            self.topics[topic].channels[channel] = None
            self.changes.append(("created", topic, channel))

    def delete(self, topic: str, channel: str | None = None) -> None:
        if channel is None:
            del self.topics[topic]
        else:
            del self.topics[topic].channels[channel]
        self.changes.append(("deleted", topic, channel))

    def channels_known(self, topic: str, names: list[str]) -> None:
        self.known.append((topic, names))


class FakeNsqd:
    """The part of an nsqd that LookupPeers uses."""

    def __init__(self, *lookupds: str, **changes: Any) -> None:
        own: dict[str, Any] = {"nsqlookupd_tcp_addresses": lookupds}
        own["broadcast_address"] = "127.0.0.1"
        self.options = changed(NsqdOptions(), **own, **changes)
        self.broker = FakeBroker()
        self.tcp_port, self.http_port = 4150, 4151
        # A real nsqd would start the topic in the turn that is scheduled.
        self.turns = SimpleNamespace(on_changes=lambda: None, schedule=lambda: None)
        self.drain_watchers: list[Callable[[], object]] = []
        self.lookupd_token = ""

    async def __aenter__(self) -> "FakeNsqd":
        self.peers = LookupPeers(self)  # type: ignore[arg-type] # it has all that is used
        await self.peers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peers.stop()

    def create(self, topic: str, *channels: str) -> None:
        self.broker.create(topic, *channels)
        self.turns.on_changes()

    def delete(self, topic: str, channel: str | None = None) -> None:
        self.broker.delete(topic, channel)
        self.turns.on_changes()


async def lookupd(tcp_address: str = "127.0.0.1:0", broadcast: str = "127.0.0.1") -> Nsqlookupd:
    daemon = Nsqlookupd(
        NsqlookupdOptions(
            tcp_address=tcp_address, http_address="127.0.0.1:0", broadcast_address=broadcast
        )
    )
    await daemon.start()
    return daemon


@pytest.fixture
async def two_lookupds() -> AsyncIterator[list[Nsqlookupd]]:
    """Two running nsqlookupds."""
    daemons = [await lookupd(), await lookupd()]
    yield daemons
    for daemon in daemons:
        await daemon.stop()


def address_of(daemon: Nsqlookupd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def registered(daemon: Nsqlookupd) -> list[str]:
    """`topic` and `topic:channel`, each followed by a star for each nsqd that has it."""
    entries = [e for e in daemon.registry.registrations() if e[0] != "client"]
    return sorted(f"{key}:{sub}".rstrip(":") + "*" * len(f) for _, key, sub, f in entries)


async def test_everything_is_registered_with_every_nsqlookupd(
    two_lookupds: list[Nsqlookupd],
) -> None:
    """Each nsqlookupd gets all topics, even without channels, and nsqd's address and zone."""
    async with FakeNsqd(
        *map(address_of, two_lookupds), topology_zone="z", broadcast_tcp_port=99
    ) as nsqd:
        nsqd.create("t", "c1", "c2#ephemeral")
        nsqd.create("bare")
        for daemon in two_lookupds:
            await until(lambda d=daemon: len(registered(d)) == 4)
            assert registered(daemon) == ["bare*", "t*", "t:c1*", "t:c2#ephemeral*"]
            (producer,) = daemon.registry.producers("t", instant())
            facts = (producer.broadcast_address, producer.tcp_port, producer.http_port)
            assert facts == ("127.0.0.1", 99, 4151)
            assert (producer.topology_zone, producer.version) == ("z", "1.3.0")


async def test_changes_before_the_start_are_taken_once(two_lookupds: list[Nsqlookupd]) -> None:
    """Changes made before `start` leave the broker at once, and are registered in their order.

    Left there, they were logged again by each turn until HTTP listened: `created` five times.
    """
    nsqd = FakeNsqd(address_of(two_lookupds[0]))
    peers = LookupPeers(nsqd)  # type: ignore[arg-type] # it has all that is used
    nsqd.create("t", "c")
    assert not nsqd.broker.changes

    await peers.start()
    await until(lambda: registered(two_lookupds[0]) == ["t*", "t:c*"])
    await until(lambda: [topic for topic, _ in nsqd.broker.known] == ["t"])
    await peers.stop()


async def test_deletions_are_unregistered_in_order(two_lookupds: list[Nsqlookupd]) -> None:
    """Changes are sent in order: a topic that was deleted and created again is registered."""
    async with FakeNsqd(address_of(two_lookupds[0])) as nsqd:
        nsqd.create("t", "c", "d")
        nsqd.create("u")
        await until(lambda: len(registered(two_lookupds[0])) == 4)
        nsqd.delete("t", "d")
        nsqd.delete("u")
        nsqd.create("u", "x")
        await until(lambda: "u:x*" in registered(two_lookupds[0]))

        assert registered(two_lookupds[0]) == ["t*", "t:c*", "t:d", "u*", "u:x*"]


async def test_many_topics_are_registered(two_lookupds: list[Nsqlookupd]) -> None:
    """1,400 registrations, which need several portions of commands, all arrive."""
    nsqd = FakeNsqd(address_of(two_lookupds[0]))
    for number in range(700):
        nsqd.broker.create(f"t{number:03}", "c")
    nsqd.broker.changes.clear()
    async with nsqd:
        await until(lambda: len(registered(two_lookupds[0])) == 1400)
        assert all(name.endswith("*") for name in registered(two_lookupds[0]))


async def test_a_stopped_nsqd_is_unregistered(two_lookupds: list[Nsqlookupd]) -> None:
    """When nsqd stops, its connections close: consumers are not sent to a dead nsqd."""
    async with FakeNsqd(address_of(two_lookupds[0])) as nsqd:
        nsqd.create("t")
        await until(lambda: registered(two_lookupds[0]) == ["t*"])
    await until(lambda: registered(two_lookupds[0]) == ["t"])


async def test_a_restarted_nsqlookupd_gets_all_registrations() -> None:
    """Within 15 s a restarted nsqlookupd has all registrations, with changes made meanwhile."""
    first = await lookupd()
    address = address_of(first)
    async with FakeNsqd(address) as nsqd:
        nsqd.create("t", "c")
        await until(lambda: registered(first) == ["t*", "t:c*"])
        await first.stop()
        nsqd.create("while-away", "c")
        nsqd.delete("t", "c")

        again = await lookupd(address)
        await until(lambda: len(registered(again)) == 3, seconds=15)
        assert registered(again) == ["t*", "while-away*", "while-away:c*"]
        nsqd.create("later")
        await until(lambda: "later*" in registered(again))
        await again.stop()


async def test_nsqd_starts_without_its_nsqlookupd(caplog: pytest.LogCaptureFixture) -> None:
    """nsqd starts without its nsqlookupd, warns once, retries, and registers within 15 s."""
    caplog.set_level(logging.DEBUG, "sparq.nsqd")
    first = await lookupd()
    address = address_of(first)
    await first.stop()
    async with FakeNsqd(address) as nsqd:
        nsqd.create("t")
        await until(lambda: nsqd.broker.known == [("t", [])])
        await until(lambda: caplog.text.count("onnect") >= 3)
        assert 1 == sum(record.levelno == logging.WARNING for record in caplog.records)
        late = await lookupd(address)
        await until(lambda: registered(late) == ["t*"], seconds=15)
        await late.stop()


async def test_an_idle_nsqd_sends_pings(
    two_lookupds: list[Nsqlookupd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle nsqd sends PINGs, so that nsqlookupd does not take it for dead."""
    monkeypatch.setattr(lookup_peers, "PING_SECONDS", 0.02)
    async with FakeNsqd(address_of(two_lookupds[0])) as nsqd:
        nsqd.create("t")
        await until(lambda: registered(two_lookupds[0]) == ["t*"])
        (producer,) = two_lookupds[0].registry.producers("t", instant())
        before = producer.last_update
        await until(lambda: producer.last_update > before)
        assert [node for node, _ in two_lookupds[0].registry.nodes(instant())] == [producer]


@pytest.mark.behaviour("more.disagreeing-lookupds")
async def test_a_new_topic_gets_the_channels_of_all_nsqlookupds(
    two_lookupds: list[Nsqlookupd],
) -> None:
    """A new topic gets the channels known to any nsqlookupd, without ephemeral ones."""
    two_lookupds[0].registry.create_channel("t#ephemeral", "a")
    two_lookupds[0].registry.create_channel("t#ephemeral", "b")
    two_lookupds[1].registry.create_channel("t#ephemeral", "b")
    two_lookupds[1].registry.create_channel("t#ephemeral", "c")
    two_lookupds[1].registry.create_channel("t#ephemeral", "gone#ephemeral")
    async with FakeNsqd(*map(address_of, two_lookupds)) as nsqd:
        nsqd.create("t#ephemeral")
        nsqd.create("unknown")
        await until(lambda: len(nsqd.broker.known) == 2)

        assert sorted(nsqd.broker.known) == [("t#ephemeral", ["a", "b", "c"]), ("unknown", [])]


async def test_a_new_channel_causes_no_lookup(two_lookupds: list[Nsqlookupd]) -> None:
    """Only a new topic asks the nsqlookupds for channels; a new channel does not."""
    async with FakeNsqd(address_of(two_lookupds[0])) as nsqd:
        nsqd.create("t")
        await until(lambda: nsqd.broker.known)
        nsqd.create("t", "c")
        nsqd.delete("t", "c")
        await until(lambda: registered(two_lookupds[0]) == ["t*", "t:c"])
        assert nsqd.broker.known == [("t", [])]


class ScriptedLookupd:
    """An nsqlookupd with scripted answers; `heard` has the bytes that it received."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = answers
        self.heard = bytearray()
        self.connections = 0

    async def __aenter__(self) -> str:
        self.server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for answer in self.answers:
            self.heard += await reader.read(1 << 16)
            if answer is None:
                break
            writer.write(answer)
        else:
            while data := await reader.read(1 << 16):
                self.heard += data
        writer.close()


def answer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def identity(**changes: Any) -> bytes:
    return answer(json.dumps({"broadcast_address": "127.0.0.1", "http_port": 1} | changes).encode())


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([None], "0 bytes read on a total of 4 expected bytes"),
        ([answer(b"E_BAD_PROTOCOL")], "answered IDENTIFY with b'E_BAD_PROTOCOL'"),
        ([answer(b"[]")], "answered IDENTIFY with b'[]'"),
        ([answer(b"{}")], "answered IDENTIFY with b'{}'"),
        ([b"\xff\xff\xff\xff"], "announced an answer of -1 bytes"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "speaks HTTP: use nsqlookupd's TCP port"),
        ([b"\x7f\xff\xff\xff"], "announced an answer of 2147483647 bytes"),
        ([identity(), answer(b"E_INVALID x")], "answered REGISTER t with b'E_INVALID x'"),
        ([identity(), answer(b"OK") + b"more"], "sent unexpected data"),
        ([identity() + b"\x00"], "TimeoutError"),
    ],
)
async def test_nsqd_reconnects_to_a_faulty_peer(
    answers: list[bytes | None],
    complaint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault of a peer is logged and nsqd reconnects; other peers are used meanwhile."""
    monkeypatch.setattr(lookup_peers, "REPLY_SECONDS", 0.2)
    scripted, good = ScriptedLookupd(*answers), await lookupd()
    good.registry.create_channel("t", "c")
    async with scripted as address:
        nsqd = FakeNsqd(address, address_of(good), http_client_connect_timeout=2_000_000_000)
        nsqd.broker.create("t")
        with caplog.at_level(logging.WARNING, logger="sparq.nsqd.lookup_peers"):
            async with nsqd:
                await until(lambda: nsqd.broker.known and scripted.connections > 1)
                await until(lambda: "t*" in registered(good))
    await good.stop()

    assert nsqd.broker.known == [("t", ["c"])]
    assert complaint in caplog.text


async def test_a_silent_peer_delays_a_topic_at_most_answer_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After ANSWER_SECONDS the broker gets the channels that are known by then."""
    # Time for the good one's answer, also on a busy machine.
    monkeypatch.setattr(lookup_peers, "ANSWER_SECONDS", 2.0)
    good = await lookupd()
    good.registry.create_channel("t", "c")
    async with ScriptedLookupd(b"") as silent, FakeNsqd(silent, address_of(good)) as nsqd:
        nsqd.create("t")
        await until(lambda: nsqd.broker.known)
        assert nsqd.broker.known == [("t", ["c"])]
    await good.stop()


async def test_outdated_changes_are_not_sent_after_a_reconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic deleted before a reconnect and created again since is not unregistered."""
    monkeypatch.setattr(lookup_peers, "REPLY_SECONDS", 0.1)
    scripted = ScriptedLookupd(identity(), b"")
    async with scripted as address, FakeNsqd(address) as nsqd:
        nsqd.broker.create("t")
        (peer,) = nsqd.peers._peers.values()
        await until(lambda: b"REGISTER t" in scripted.heard)
        nsqd.delete("t")
        await until(lambda: peer.http_address is None)
        nsqd.create("t")
        scripted.answers, scripted.heard = (identity(), *[answer(b"OK")] * 2), bytearray()
        await until(lambda: b"REGISTER t" in scripted.heard)
        nsqd.create("later")
        await until(lambda: b"later" in scripted.heard)

    assert b"UNREGISTER" not in scripted.heard


async def test_the_first_commands_are_nsqs() -> None:
    """nsqd sends magic bytes, IDENTIFY with NSQ's seven fields and `draining`, then REGISTER."""
    scripted = ScriptedLookupd(identity(), answer(b"OK"))
    async with scripted as address:
        nsqd = FakeNsqd(address, topology_region="r")
        nsqd.broker.create("t", "c")
        async with nsqd:
            await until(lambda: scripted.heard.endswith(b"\n") and b"REGISTER" in scripted.heard)

    head, _, rest = bytes(scripted.heard).partition(b"IDENTIFY\n")
    (size,) = struct.unpack_from(">i", rest)
    identified = json.loads(rest[4 : 4 + size])
    assert head == b"  V1"
    assert rest[4 + size :] == b"REGISTER t c\n"
    assert identified.pop("hostname")
    # A field of sparq, ignored by Go's nsqlookupd: this nsqd can report drains.
    assert identified.pop("draining") is False
    assert identified == {
        "version": "1.3.0",
        "tcp_port": 4150,
        "http_port": 4151,
        "broadcast_address": "127.0.0.1",
        "topology_zone": "",
        "topology_region": "r",
    }


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"channels":["a","b#ephemeral","c"]}', ["a", "c"]),
        (b'{"channels":null}', []),
        (b'{"channels":["ok","bad name",7,null]}', ["ok"]),
        (b'{"status_code":200,"data":{"channels":["a"]}}', ["a"]),
    ],
)
def test_answers_about_channels_are_read(body: bytes, names: list[str]) -> None:
    """Answers of old nsqlookupds are read, too; invalid and ephemeral names are left out."""
    assert channels_of(200, body) == names


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"{}", b"7", b'{"data":7}', b"[" * 100_000])
def test_malformed_answers_are_refused(body: bytes) -> None:
    """A malformed answer raises ValueError and no other exception."""
    with pytest.raises(ValueError, match="answer "):
        channels_of(200, body)


async def test_a_change_is_sent_at_once(
    two_lookupds: list[Nsqlookupd], caplog: pytest.LogCaptureFixture
) -> None:
    """Once connected, a change has been written when `on_changes` returns, before any reply.

    The answer may be there before the task that reads it knows of the change.
    """
    caplog.set_level(logging.WARNING, "sparq.nsqd.lookup_peers")
    async with FakeNsqd(address_of(two_lookupds[0])) as nsqd:
        nsqd.create("first")
        await until(lambda: registered(two_lookupds[0]) == ["first*"])
        for number in range(lookup_peers.COMMANDS_AT_ONCE + 50):
            nsqd.create(f"t{number}#ephemeral")
            if number < 30:
                # What is written now is read in the next pass of the loop by nsqlookupd, which
                # runs in this process.
                for _ in range(3):
                    await asyncio.sleep(0)
                assert f"t{number}#ephemeral*" in registered(two_lookupds[0])
        await until(lambda: len(registered(two_lookupds[0])) == number + 2)
    assert caplog.messages == []
