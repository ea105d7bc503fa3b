"""client.discovery: all nsqlookupds are queried, and no failing one stops discovery."""

import asyncio
import contextlib
import json
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sparq.client import Consumer, Producer, PublishError
from sparq.client.config import Config
from sparq.client.discovery import Discovery, Found, _Poll
from tests.client.certificates import certificates, server_context
from tests.client.scripted import scripted, subscribed
from tests.support.servers import free_port
from tests.support.waiting import until


class Lookupd:
    """A scripted nsqlookupd: it answers with the given status, body and headers."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.tls = tls
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.status = 200
        self.body: bytes = b""
        self.headers: dict[str, str] = {}
        self.hanging = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def lists(self, *nsqds: str) -> None:
        """Answer with these nsqds as producers from now on."""
        self.status, self.body = (
            200,
            json.dumps({"producers": [_producer(n) for n in nsqds]}).encode(),
        )

    async def start(self) -> None:
        """Listen."""
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        self.authorizations.append(request.headers.get("Authorization"))
        while self.hanging.is_set():  # noqa: ASYNC110 - until the test lets it go on, or ends it
            await asyncio.sleep(0.01)
        return web.Response(status=self.status, body=self.body, headers=self.headers)


def _producer(nsqd: str) -> dict[str, Any]:
    host, _, port = nsqd.rpartition(":")
    return {"broadcast_address": host.strip("[]"), "tcp_port": int(port), "http_port": 1}


def to_sets(found: list[set[str]]) -> Found:
    """A receiver of the listed addresses that notes them without their times."""
    return lambda listed: found.append(set(listed))


@contextlib.asynccontextmanager
async def running(discovery: Discovery, found: Found) -> AsyncIterator[None]:
    """Run a discovery during the block."""
    task = asyncio.create_task(discovery.run(found))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def discover_from(
    count: int,
    conversation: Callable[[list[Lookupd], list[set[str]]], Awaitable[None]],
    **options: Any,
) -> None:
    """Run `conversation` while a discovery queries `count` nsqlookupds."""
    lookupds = [Lookupd() for _ in range(count)]
    for lookupd in lookupds:
        await lookupd.start()
    found: list[set[str]] = []
    config = Config.of(None, {"lookupd_poll_interval": 0.05, **options})
    discovery = Discovery([each.address for each in lookupds], "clicks", config, random.Random(1))
    async with running(discovery, to_sets(found)):
        await conversation(lookupds, found)
    for lookupd in lookupds:
        await lookupd.stop()


async def test_answers_are_merged_and_a_failed_nsqlookupd_keeps_its_last() -> None:
    """nsqds of all nsqlookupds are found; one that fails or sends no JSON keeps its last answer."""

    async def conversation(lookupds: list[Lookupd], found: list[set[str]]) -> None:
        lookupds[0].lists("a:1", "b:2")
        lookupds[1].lists("b:2", "c:3")
        await until(lambda: found and found[-1] == {"a:1", "b:2", "c:3"})
        assert "/lookup?topic=clicks" in lookupds[0].asked

        await lookupds[0].stop()
        lookupds[1].body = b"{nonsense"
        before = len(lookupds[1].asked)
        await until(lambda: len(lookupds[1].asked) >= before + 3)
        assert found[-1] == {"a:1", "b:2", "c:3"}

        lookupds[1].lists("d:4")
        await until(lambda: found[-1] == {"a:1", "b:2", "d:4"})

    await discover_from(2, conversation)


@pytest.mark.parametrize("silent", [False, True])
async def test_old_answers_count_again_only_while_no_nsqlookupd_answers(
    silent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An address has the time of the newest query that listed it, or of the failures if all fail.

    An nsqlookupd that keeps silent fails after ``PATIENCE_SECONDS``, long before its query ends.
    """
    caplog.set_level(logging.CRITICAL, "sparq.client")
    monkeypatch.setattr("sparq.client.discovery.PATIENCE_SECONDS", 0.1)

    async def conversation(lookupds: list[Lookupd], _: list[set[str]]) -> None:
        times: dict[str, float] = {}
        now = asyncio.get_running_loop().time
        lookupds[0].lists("a:1", "b:2")
        lookupds[1].lists("b:2")
        discovery = Discovery(
            [each.address for each in lookupds],
            "t",
            Config(lookupd_poll_interval=0.05),
            random.Random(1),
            lambda given: [*given, "tunnel:9"],
        )
        async with running(discovery, times.update):
            await until(lambda: times.keys() == {"a:1", "b:2", "tunnel:9"})

            lookupds[0].status = 500
            lost = now()
            await until(lambda: min(times["b:2"], times["tunnel:9"]) > lost + 0.3)
            assert times["a:1"] < lost

            lookupds[1].status = 500
            if silent:
                lookupds[1].hanging.set()
            lost = now()
            await until(lambda: min(times.values()) > lost)
            lookupds[1].hanging.clear()

    await discover_from(2, conversation)


async def test_an_nsqlookupd_that_hangs_does_not_delay_the_others() -> None:
    """While one nsqlookupd does not answer, changes at the other are found without delay."""

    async def conversation(lookupds: list[Lookupd], found: list[set[str]]) -> None:
        lookupds[0].lists("a:1")
        lookupds[1].lists("b:2")
        await until(lambda: found and found[-1] == {"a:1", "b:2"})
        lookupds[0].hanging.set()
        before = len(lookupds[0].asked)
        await until(lambda: len(lookupds[0].asked) > before)
        lookupds[1].lists("c:3")
        await until(lambda: found[-1] == {"a:1", "c:3"})
        lookupds[0].hanging.clear()

    await discover_from(2, conversation)


async def test_nsqlookupds_can_be_added_and_removed() -> None:
    """An added nsqlookupd is queried immediately; the answers of a removed one no longer count."""

    async def conversation(lookupds: list[Lookupd], found: list[set[str]]) -> None:
        config = Config(lookupd_poll_interval=300)
        discovery = Discovery([], "clicks", config, random.Random(1))
        async with running(discovery, to_sets(found)):
            first, second = (lookupd.address for lookupd in lookupds)
            lookupds[0].lists("x:1")
            lookupds[1].lists("y:2")
            discovery.add(first)
            discovery.add(first)
            await until(lambda: {"x:1"} in found)
            discovery.add(second)
            await until(lambda: {"x:1", "y:2"} in found)
            discovery.remove(first)
            discovery.add(first)
            await until(lambda: found[-1] == {"x:1", "y:2"} and found.count(found[-1]) == 2)
            with pytest.raises(ValueError, match="c:3 is not among"):
                discovery.remove("c:3")
            assert discovery.count == 2

    await discover_from(2, conversation, lookupd_poll_interval=300)


async def test_without_the_last_nsqlookupd_its_nsqds_are_no_longer_listed() -> None:
    """The removal of the last nsqlookupd is reported: its nsqds are no longer found."""

    async def conversation(lookupds: list[Lookupd], _: list[set[str]]) -> None:
        found: list[set[str]] = []
        lookupds[0].lists("a:1")
        config = Config(lookupd_poll_interval=300)
        discovery = Discovery([lookupds[0].address], "t", config, random.Random(1))
        async with running(discovery, to_sets(found)):
            await until(lambda: found)
            discovery.remove(lookupds[0].address)
            assert found == [{"a:1"}, set()]

    await discover_from(1, conversation)


async def test_only_nsqds_that_the_filter_returns_are_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The filter's result is used, also unlisted addresses; if it raises, nothing changes."""
    answers: list[list[str]] = [["a:1"], ["tunnel:9"]]

    def keep(listed: list[str]) -> list[str]:
        assert listed == ["a:1", "b:2"]
        return answers.pop(0)

    async def conversation(lookupds: list[Lookupd], _: list[set[str]]) -> None:
        lookupds[0].lists("b:2", "a:1")
        found: list[set[str]] = []
        config = Config(lookupd_poll_interval=0.01)
        discovery = Discovery([lookupds[0].address], "t", config, random.Random(1), keep)
        async with running(discovery, to_sets(found)):
            await until(lambda: "the discovery filter failed" in caplog.text)
            assert found == [{"a:1"}, {"tunnel:9"}]

    await discover_from(1, conversation)


async def test_a_failed_publish_has_the_nsqlookupds_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failed publish's error and ``errors`` contain the nsqlookupd's answer."""
    caplog.set_level(logging.CRITICAL, "sparq.client")

    async def conversation(lookupds: list[Lookupd], _: list[set[str]]) -> None:
        lookupds[0].status = 500
        place = lookupds[0].address
        async with Producer(lookupd_http_addresses=place, publish_timeout=0.2) as producer:
            with pytest.raises(PublishError, match=f"http://{place}/nodes: status 500"):
                await producer.publish("t", b"x")
            assert producer.errors == {f"http://{place}/nodes": "status 500"}
            lookupds[0].lists("a:1")

    await discover_from(1, conversation)


async def test_a_closed_port_is_logged_as_connection_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A closed port is logged as "connection refused", not in the HTTP library's long text."""
    place = f"127.0.0.1:{free_port()}"
    async with Consumer("clicks", "c", lookupd_http_addresses=place) as consumer:
        await until(lambda: consumer.errors)

    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"nsqlookupd http://{place}/lookup: connection refused"]


async def test_a_dead_letter_goes_to_the_filters_nsqd(caplog: pytest.LogCaptureFixture) -> None:
    """Dead letters go to the filter's nsqd: the listed address may be unreachable."""
    caplog.set_level(logging.CRITICAL, "sparq.client")

    async def conversation(lookupds: list[Lookupd], _: list[set[str]]) -> None:
        lookupds[0].lists("127.0.0.1:1")
        async with (
            scripted() as [nsqd],
            Consumer(
                "t",
                "c",
                lookupd_http_addresses=lookupds[0].address,
                discovery_filter=lambda listed: [nsqd.address for _ in listed],
                handler=print,
                dead_letter="dead",
            ),
        ):
            (await subscribed(nsqd)).deliver(1, attempts=6)
            await until(lambda: nsqd.lines(b"FIN"))
            assert nsqd.lines(b"PUB") == [b"PUB dead"]

    await discover_from(1, conversation)


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

    async def conversation(lookupds: list[Lookupd], found: list[set[str]]) -> None:
        lookupd = lookupds[0]
        lookupd.lists("a:1")
        config = Config(lookupd_poll_interval=300, lookupd_poll_jitter=1)
        discovery = Discovery([lookupd.address], "other", config, random.Random(1))
        async with running(discovery, to_sets(found)):
            await until(lambda: [path for path in lookupd.asked if "other" in path])
            discovery.recheck()
            await until(lambda: len([path for path in lookupd.asked if "other" in path]) == 2)

    await discover_from(1, conversation)


async def test_only_a_verified_https_nsqlookupd_gets_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """https nsqlookupds are verified; only a verified one gets the secret, and no log has it."""
    files = certificates(tmp_path)
    secret = "open sesame"
    good, bad = (Lookupd(server_context(files, cert)) for cert in (files.server, files.stranger))
    found: list[set[str]] = []
    options: dict[str, Any] = {"tls_root_ca_file": str(files.authority), "auth_secret": secret}
    discovery = Discovery(
        [f"https://{each.address}" for each in (good, bad)],
        "clicks",
        Config(lookupd_poll_interval=0.05, **options),
        random.Random(1),
    )
    for each in (good, bad):
        each.lists("127.0.0.1:4150")
        await each.start()
    async with running(discovery, to_sets(found)):
        await until(lambda: found, 30)
    for each in (good, bad):
        await each.stop()

    assert found[0] == {"127.0.0.1:4150"}
    assert good.authorizations[0] == f"Bearer {secret}"
    assert bad.asked == []
    assert f"nsqlookupd https://{bad.address}" in caplog.text
    assert secret not in caplog.text


async def test_with_on_draining_draining_nsqds_are_reported_separately() -> None:
    """With on_draining, nsqds that any nsqlookupd lists as draining are reported separately.

    The listing ends when a query of that nsqlookupd fails.
    """

    async def conversation(lookupds: list[Lookupd], found: list[set[str]]) -> None:
        for lookupd in lookupds:
            lookupd.lists("a:1", "b:2")
        document = json.loads(lookupds[1].body)
        document["producers"][1]["draining"] = True
        lookupds[1].body = json.dumps(document).encode()
        apart: list[set[str]] = []
        draining: list[frozenset[str]] = []
        discovery = Discovery(
            [each.address for each in lookupds],
            None,
            Config(lookupd_poll_interval=0.05),
            random.Random(1),
        )
        discovery.on_draining = draining.append
        async with running(discovery, to_sets(apart)):
            await until(lambda: (draining[-1:], apart[-1:]) == ([frozenset({"b:2"})], [{"a:1"}]))
            await until(lambda: found and found[-1] == {"a:1", "b:2"})  # without on_draining
            lookupds[1].status = 500
            await until(lambda: (draining[-1], apart[-1]) == (frozenset(), {"a:1", "b:2"}))

    await discover_from(2, conversation)
