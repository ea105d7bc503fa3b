"""Which topics nsqlookupds know: both forms of their answer, and answers that mean no good."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from sparq.client.config import Config
from sparq.protocol.lookup import ANSWER_BYTES_MAX, LISTED_MAX
from sparq.protocol.patterns import Pattern
from sparq.tools.nsq_to_file import TopicFinder, topics_in


@asynccontextmanager
async def site(answer: web.Response | None) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """A web site with one answer, on a free port; what it was asked."""
    asked: list[web.Request] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request)
        made = web.Response(body=b"{}") if answer is None else answer
        return web.Response(status=made.status, headers=made.headers, body=made.body)

    application = web.Application()
    application.router.add_get("/{tail:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "{}:{}".format(*runner.addresses[0]), asked
    finally:
        await runner.cleanup()


def listing(*topics: object, status: int = 200) -> web.Response:
    """An answer that lists topics."""
    return web.json_response({"topics": list(topics)}, status=status)


def asking(*lookupds: str, pattern: str = "", config: Config | None = None) -> TopicFinder:
    """Asks these nsqlookupds."""
    return TopicFinder(
        lookupds, Pattern(pattern), config or Config(), connect_seconds=60, request_seconds=60
    )


async def test_answers_are_united_and_picked() -> None:
    """In order, each once; of both forms."""
    old = web.json_response({"status_code": 200, "data": {"topics": ["b", "a"]}})
    async with site(listing("c", "b", "x")) as (first, _), site(old) as (second, _):
        assert ["a", "b", "c"] == await asking(first, second, pattern="^[abc]$").known()


async def test_one_that_fails_costs_its_own_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It is told of once, until it has answered again."""
    async with site(listing("a")) as (good, _), site(listing(status=500)) as (bad, _):
        topics = asking(good, bad, "127.0.0.1:1")
        assert [["a"], ["a"]] == [await topics.known(), await topics.known()]

    assert 1 == caplog.text.count(f"nsqlookupd http://{bad}/topics: status 500")
    assert 1 == caplog.text.count("nsqlookupd http://127.0.0.1:1/topics: connection refused")


async def test_the_secret_is_shown() -> None:
    """As consumers show it."""
    async with site(listing("a")) as (address, asked):
        await asking(address, config=Config(auth_secret="s3cr3t")).known()

    assert "Bearer s3cr3t" == asked[0].headers["Authorization"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.Response(status=302, headers={"Location": "/elsewhere"}), "status 302"),
        (web.Response(body=b"no JSON"), "Expecting value"),
        (web.Response(body=b"[" * 100_000), "nested too deep"),
        (web.Response(body=b'["a"]'), "has no list of topics"),
        (web.Response(body=b'{"topics": {"a": 1}}'), "has no list of topics"),
        (
            web.Response(body=b'{"topics": ["a"]}' + b" " * ANSWER_BYTES_MAX),
            f"limit of {ANSWER_BYTES_MAX} bytes",
        ),
        (listing(*map(str, range(LISTED_MAX + 1))), f"more than {LISTED_MAX} topics"),
        (
            web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}),
            "can't decode",
        ),
    ],
)
async def test_an_answer_that_means_no_good(
    answer: web.Response, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error of that nsqlookupd; nothing is followed, inflated or read without end."""
    async with site(answer) as (address, asked):
        assert [] == await asking(address).known()

    assert reason in caplog.text
    assert ["/topics"] == [request.path for request in asked]


def test_what_no_topic_can_be_called_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """And told of in one line, without what a peer wrote."""
    listed = ["a", "..", "a/b", "", "x" * 65, None, 7, ["b"], "e\n#ephemeral", "b#ephemeral"]

    assert {"a", "..", "b#ephemeral"} == topics_in({"topics": listed})
    assert ["skipped 7 topics with invalid names"] == [r.message for r in caplog.records]
