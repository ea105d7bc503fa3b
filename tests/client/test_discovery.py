"""client.discovery: all nsqlookupds are queried, and no failing one stops discovery."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer, Producer, PublishError
from sparq.client.config import Config
from sparq.client.discovery import Discovery, Found, _Poll
from tests.client.certificates import certificates, server_context
from tests.client.scripted import listening, scripted, subscribed
from tests.cluster.peers import answer
from tests.support.waiting import until


class Lookupd:
    """A scripted nsqlookupd: it gives the answer that a test has set, or none while it hangs."""

    def __init__(self) -> None:
        self.address = ""
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.hangs = False
        self.answer = b""

    def lists(self, *nsqds: str, draining: str = "") -> None:
        """Answer with these nsqds as producers from now on."""
        entries = []
        for nsqd in nsqds:
            host, _, port = nsqd.rpartition(":")
            place = {"broadcast_address": host, "tcp_port": int(port), "http_port": 1}
            entries.append({**place, "draining": nsqd == draining})
        self.answer = answer({"producers": entries})

    def fails(self) -> None:
        """Answer with an error from now on."""
        self.answer = answer(b"", "500 Internal Server Error")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one query."""
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        self.asked.append(self.heads[-1].split(" ")[1])
        if not self.hangs:
            writer.write(self.answer)


@contextlib.asynccontextmanager
async def running_lookupds(count: int, **tls: Any) -> AsyncIterator[list[Lookupd]]:
    """Run scripted nsqlookupds during the block."""
    lookupds = [Lookupd() for _ in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        for each in lookupds:
            each.address = await stack.enter_async_context(listening(each.serve, **tls))
        yield lookupds


def discovery_of(
    *lookupds: Lookupd, topic: str | None = "clicks", keep: Any = None, **options: Any
) -> Discovery:
    """A discovery that queries these nsqlookupds, every 0.05 s unless `options` differ."""
    config = Config.of(None, {"lookupd_poll_interval": 0.05, **options})
    return Discovery([each.address for each in lookupds], topic, config, random.Random(1), keep)


@contextlib.asynccontextmanager
async def running(discovery: Discovery, note: Found) -> AsyncIterator[None]:
    """Run a discovery during the block; `note` gets the addresses and their times."""
    discovery.start(note)
    try:
        yield
    finally:
        await discovery.close()


@contextlib.asynccontextmanager
async def discovering(discovery: Discovery) -> AsyncIterator[list[set[str]]]:
    """Run a discovery during the block, and note each set of addresses that it finds."""
    found: list[set[str]] = []
    async with running(discovery, lambda listed: found.append(set(listed))):
        yield found


async def test_answers_are_merged_and_a_failed_nsqlookupd_keeps_its_last() -> None:
    """nsqds of all nsqlookupds are found; one that fails or sends no JSON keeps its last answer."""
    async with running_lookupds(2) as [first, second]:
        first.lists("a:1", "b:2")
        second.lists("b:2", "c:3")
        async with discovering(discovery_of(first, second)) as found:
            await until(lambda: found and found[-1] == {"a:1", "b:2", "c:3"})
            assert "/lookup?topic=clicks" in first.asked

            first.fails()
            second.answer = answer(b"{nonsense")
            before = len(second.asked)
            await until(lambda: len(second.asked) >= before + 3)
            assert found[-1] == {"a:1", "b:2", "c:3"}

            second.lists("d:4")
            await until(lambda: found[-1] == {"a:1", "b:2", "d:4"})


@pytest.mark.parametrize("silent", [False, True])
async def test_old_answers_count_again_only_while_no_nsqlookupd_answers(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address has the time of the newest query that listed it, or of the failures if all fail.

    An nsqlookupd that keeps silent fails after ``PATIENCE_SECONDS``, long before its query ends.
    """
    monkeypatch.setattr("sparq.client.discovery.PATIENCE_SECONDS", 0.1)
    times: dict[str, float] = {}
    now = asyncio.get_running_loop().time
    async with running_lookupds(2) as [first, second]:
        first.lists("a:1", "b:2")
        second.lists("b:2")
        discovery = discovery_of(first, second, keep=lambda given: [*given, "tunnel:9"])
        async with running(discovery, times.update):
            await until(lambda: times.keys() == {"a:1", "b:2", "tunnel:9"})

            first.fails()
            lost = now()
            await until(lambda: min(times["b:2"], times["tunnel:9"]) > lost + 0.3)
            assert times["a:1"] < lost

            second.fails()
            second.hangs = silent
            lost = now()
            await until(lambda: min(times.values()) > lost)


async def test_an_nsqlookupd_that_hangs_does_not_delay_the_others() -> None:
    """While one nsqlookupd does not answer, changes at the other are found without delay."""
    async with running_lookupds(2) as [first, second]:
        first.lists("a:1")
        second.lists("b:2")
        async with discovering(discovery_of(first, second)) as found:
            await until(lambda: found and found[-1] == {"a:1", "b:2"})
            first.hangs = True
            before = len(first.asked)
            await until(lambda: len(first.asked) > before)
            second.lists("c:3")
            await until(lambda: found[-1] == {"a:1", "c:3"})


async def test_nsqlookupds_can_be_added_and_removed() -> None:
    """An added nsqlookupd is queried immediately; the answers of a removed one no longer count."""
    discovery = discovery_of(lookupd_poll_interval=300)
    async with running_lookupds(2) as [first, second], discovering(discovery) as found:
        first.lists("x:1")
        second.lists("y:2")
        discovery.add(first.address)
        discovery.add(first.address)
        await until(lambda: {"x:1"} in found)
        discovery.add(second.address)
        await until(lambda: {"x:1", "y:2"} in found)
        discovery.remove(first.address)
        discovery.add(first.address)
        await until(lambda: found[-1] == {"x:1", "y:2"} and found.count(found[-1]) == 2)
        with pytest.raises(ValueError, match="c:3 is not among"):
            discovery.remove("c:3")
        assert len(discovery.polls) == 2
        for each in (first, second):
            discovery.remove(each.address)
        assert found[-2:] == [{"y:2"}, set()]


async def test_only_nsqds_that_the_filter_returns_are_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The filter's result is used, also unlisted addresses; if it raises, nothing changes."""
    answers: list[list[str]] = [["a:1"], ["tunnel:9"]]

    def keep(listed: list[str]) -> list[str]:
        assert listed == ["a:1", "b:2"]
        return answers.pop(0)

    async with running_lookupds(1) as [lookupd]:
        lookupd.lists("b:2", "a:1")
        async with discovering(discovery_of(lookupd, keep=keep)) as found:
            await until(lambda: "the discovery filter failed" in caplog.text)
            assert found == [{"a:1"}, {"tunnel:9"}]


async def test_a_failed_publish_has_the_nsqlookupds_answer() -> None:
    """A failed publish's error and ``errors`` contain the nsqlookupd's answer."""
    async with running_lookupds(1) as [lookupd]:
        lookupd.fails()
        nodes = f"http://{lookupd.address}/nodes"
        async with Producer(lookupd_http_addresses=lookupd.address, publish_timeout=0.2) as made:
            with pytest.raises(PublishError, match=f"{nodes}: status 500"):
                await made.publish("t", b"x")
            assert made.errors == {nodes: "status 500"}


async def test_a_dead_letter_goes_to_the_filters_nsqd() -> None:
    """Dead letters go to the filter's nsqd: the listed address may be unreachable."""
    async with running_lookupds(1) as [lookupd], scripted() as [nsqd]:
        lookupd.lists("127.0.0.1:1")
        options: dict[str, Any] = {
            "lookupd_http_addresses": lookupd.address,
            "discovery_filter": lambda listed: [nsqd.address for _ in listed],
        }
        async with Consumer("t", "c", handler=print, dead_letter="dead", **options):
            (await subscribed(nsqd)).deliver(1, attempts=6)
            await until(lambda: nsqd.lines(b"FIN"))
            assert nsqd.lines(b"PUB") == [b"PUB dead"]


def test_waits_after_hasten_grow_up_to_the_interval() -> None:
    """After ``hasten``, waits are 1, 2, 4 ... s up to the interval, each up to 30 % longer."""
    config = Config(lookupd_poll_interval=20, lookupd_poll_jitter=0.3)
    poll = _Poll("http://127.0.0.1:4161/nodes", config, random.Random(1))
    assert [poll._next_wait() for _ in range(3)] == [20, 20, 20]
    poll.hasten()
    waits = [poll._next_wait() for _ in range(7)]

    for wait, shortest in zip(waits, (1, 2, 4, 8, 16, 20, 20), strict=True):
        assert shortest <= wait <= min(1.3 * shortest, 20)
    assert waits[0] != 1


async def test_a_recheck_leads_to_an_early_query() -> None:
    """With a poll interval of 300 s, ``recheck`` leads to a query within seconds."""
    async with running_lookupds(1) as [lookupd]:
        lookupd.lists("a:1")
        discovery = discovery_of(lookupd, lookupd_poll_interval=300, lookupd_poll_jitter=1)
        async with discovering(discovery):
            await until(lambda: len(lookupd.asked) == 1)
            discovery.recheck()
            await until(lambda: len(lookupd.asked) == 2)


async def test_only_a_verified_https_nsqlookupd_gets_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """https nsqlookupds are verified; only a verified one gets the secret, and no log has it."""
    files = certificates(tmp_path)
    secret = "open sesame"
    options: dict[str, Any] = {"tls_root_ca_file": str(files.authority), "auth_secret": secret}
    async with (
        running_lookupds(1, ssl=server_context(files)) as [good],
        running_lookupds(1, ssl=server_context(files, files.stranger)) as [bad],
    ):
        for each in (good, bad):
            each.address = f"https://{each.address}"
            each.lists("127.0.0.1:4150")
        async with discovering(discovery_of(good, bad, **options)) as found:
            await until(lambda: found, 30)

    assert found[0] == {"127.0.0.1:4150"}
    assert f"Authorization: Bearer {secret}" in good.heads[0]
    assert bad.asked == []
    assert f"nsqlookupd {bad.address}" in caplog.text
    assert secret not in caplog.text


async def test_with_on_draining_draining_nsqds_are_reported_separately() -> None:
    """With on_draining, nsqds that any nsqlookupd lists as draining are reported separately.

    The listing ends when a query of that nsqlookupd fails.
    """
    draining: list[frozenset[str]] = []
    async with running_lookupds(2) as [first, second]:
        first.lists("a:1", "b:2")
        second.lists("a:1", "b:2", draining="b:2")
        discovery = discovery_of(first, second, topic=None)
        discovery.on_draining = draining.append
        async with (
            discovering(discovery_of(first, second)) as found,
            discovering(discovery) as apart,
        ):
            await until(lambda: (draining[-1:], apart[-1:]) == ([frozenset({"b:2"})], [{"a:1"}]))
            await until(lambda: found and found[-1] == {"a:1", "b:2"})  # without on_draining
            second.fails()
            await until(lambda: (draining[-1], apart[-1]) == (frozenset(), {"a:1", "b:2"}))
