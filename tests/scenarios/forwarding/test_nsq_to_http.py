"""nsq_to_http with a real nsqd and a real web server: every flag, and the effects of failures."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiohttp import web

from sparq.tools import nsq_to_http, relay
from tests.scenarios.security.test_forwarding import HOSTILE
from tests.support.servers import NsqdServer, free_port
from tests.support.waiting import until_seen
from tests.tools.forwarding import (
    all_finished,
    new_topic,
    publish,
    running,
    stats,
    web_server,
)

CHANNEL = "nsq_to_http"
SHORT_TIMEOUTS = "--consumer-opt=default_requeue_delay,5ms"
NO_BACKOFF = "--consumer-opt=max_backoff_duration,0"


@pytest.fixture(autouse=True)
def without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up an unreachable destination immediately."""
    monkeypatch.setattr(relay, "PAUSES", ())


def arguments(nsqd: NsqdServer, topic: str, *words: str) -> tuple[str, ...]:
    """The command line of a tool that consumes this topic."""
    return (f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={topic}", *words)


async def test_each_message_is_posted(nsqd: NsqdServer) -> None:
    """`--post` sends each message unchanged as the body of a POST, and then finishes it."""
    topic, bodies = new_topic(), [*HOSTILE, b"x" * (1 << 20)]
    async with web_server() as server:
        async with running(nsq_to_http, *arguments(nsqd, topic, f"--post={server.url}/in?k=v")):
            await publish(nsqd, topic, *bodies)
            await all_finished(nsqd, topic, CHANNEL, len(bodies))

        assert sorted(bodies) == sorted(server.bodies)
        host = server.url.removeprefix("http://")
        assert {("POST", "/in?k=v", host)} == {
            (each.method, each.path_qs, each.headers["Host"]) for each in server.asked
        }
        assert {"application/octet-stream"} == {
            each.headers["Content-Type"] for each in server.asked
        }
        agents = {each.headers["User-Agent"] for each in server.asked}
        assert all(re.fullmatch(r"nsq_to_http v1\.3\.0 sparq/\S+", agent) for agent in agents)


async def test_get_puts_each_message_into_the_url(nsqd: NsqdServer) -> None:
    """`--get` sends each message in the query, without a body."""
    topic = new_topic()
    async with web_server() as server:
        words = arguments(nsqd, topic, f"--get={server.url}/in?a=%41&b=%s&c=", "-channel=mine")
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, b"a b&c=d#e")
            await all_finished(nsqd, topic, "mine", 1)

        (asked,) = server.asked
        assert ("GET", "/in?a=%41&b=a+b%26c%3Dd%23e&c=") == (asked.method, asked.path_qs)
        assert "Content-Type" not in asked.headers


@pytest.mark.parametrize(
    ("flag", "path", "refused"),
    [
        ("post", "/", [199 + 101, 302, 404, 429, 500, 503]),
        ("get", "/?%s", [201, 204, 302, 404, 500]),
    ],
)
async def test_another_status_requeues_the_message(
    nsqd: NsqdServer, flag: str, path: str, refused: list[int]
) -> None:
    """Any status other than 2xx (for `--get`: 200) requeues the message until it succeeds."""
    topic, left = new_topic(), list(refused)

    async def answer(request: web.Request) -> web.Response:
        status = left.pop(0) if left else 200
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with web_server() as server:
        server.answer = answer
        words = arguments(nsqd, topic, f"--{flag}={server.url}{path}", SHORT_TIMEOUTS, NO_BACKOFF)
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, b"again")
            await all_finished(nsqd, topic, CHANNEL, 1)

        assert len(refused) + 1 == len(server.asked)
        assert not any("elsewhere" in each.path_qs for each in server.asked)
        assert (0, 0, len(refused)) == stats(nsqd, topic, CHANNEL)


async def test_a_failing_message_is_retried_without_end(nsqd: NsqdServer) -> None:
    """A failing message is retried without end; `--consumer-opt=max_attempts` limits that.

    Go's nsq_to_http finishes a message after five attempts.
    """
    for words, left in ((["--consumer-opt=max_attempts,2"], 2), ([], 8)):
        topic = new_topic()
        async with web_server() as server:
            server.status = 500
            line = arguments(
                nsqd, topic, f"--post={server.url}", "--consumer-opt=default_requeue_delay,1ms"
            )
            async with running(nsq_to_http, *line, NO_BACKOFF, *words):
                await publish(nsqd, topic, b"bad")
                await server.wait_for_requests(left)
                server.status = 200
                await all_finished(nsqd, topic, CHANNEL, 1)

            assert left + (not words) == len(server.asked)


async def test_the_request_timeout(nsqd: NsqdServer) -> None:
    """`--http-client-request-timeout`: a request without an answer is a failure."""
    topic, hang = new_topic(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await hang.wait()
        return web.Response()

    async with web_server() as server:
        server.answer = answer
        words = arguments(
            nsqd, topic, f"--post={server.url}", "--http-client-request-timeout=150ms"
        )
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, b"late")
            await until_seen(lambda: (0, 0, 1) == stats(nsqd, topic, CHANNEL))
        hang.set()


async def test_concurrent_requests_are_limited(nsqd: NsqdServer) -> None:
    """`--n` limits the concurrent requests, `--max-in-flight` the messages in flight."""
    topic, now, most = new_topic(), 0, 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        in_flight.append(await asyncio.to_thread(lambda: stats(nsqd, topic, CHANNEL)[1]))
        now -= 1
        return web.Response()

    in_flight: list[int] = []
    async with web_server() as server:
        server.answer = answer
        words = arguments(nsqd, topic, f"--post={server.url}", "-n", "3", "-max-in-flight", "5")
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, *[b"%d" % number for number in range(20)])
            await all_finished(nsqd, topic, CHANNEL, 20)

    assert 3 == most
    assert 5 == max(in_flight)


async def test_an_unreachable_server_causes_no_requeue(
    nsqd: NsqdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message for an unreachable server goes to another immediately, without a requeue.

    The log names the server once, and not with each message.
    """
    topic, gone = new_topic(), f"http://127.0.0.1:{free_port()}"
    async with web_server() as server:
        words = (f"--post={gone}", f"--post={server.url}", "--mode=round-robin")
        async with running(nsq_to_http, *arguments(nsqd, topic, *words)):
            await publish(nsqd, topic, *[b"%d" % number for number in range(30)])
            await all_finished(nsqd, topic, CHANNEL, 30)

        assert 30 == len(server.bodies)
        assert (0, 0, 0) == stats(nsqd, topic, CHANNEL)
    (named,) = (line for line in capsys.readouterr().err.splitlines() if gone in line)
    assert named.endswith("; its messages are offered to the other hosts (1)")


async def test_sample_sends_a_share_of_the_messages(nsqd: NsqdServer) -> None:
    """`--sample` sends this share of the messages and finishes all; a share of 0 sends none."""
    topic, count = new_topic(), 200
    async with web_server() as server:
        words = arguments(nsqd, topic, f"--post={server.url}")
        async with running(nsq_to_http, *words, "--sample=0.25"):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, count)
        sent = len(server.asked)
        async with running(nsq_to_http, *words, "--sample=0"):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, 2 * count)

        assert 20 <= sent <= 85
        assert sent == len(server.asked)


async def test_header_adds_or_replaces_headers(nsqd: NsqdServer) -> None:
    """`--header` adds or replaces headers; a user in the URL is sent as Basic authentication."""
    topic = new_topic()
    async with web_server() as server:
        url = server.url.replace("://", "://me:s%20ecret@")
        words = (f"--post={url}/a", f"--post={url}/b", "--mode=round-robin")
        given = ("--header=user-agent: mine", "--header", "X-Two:  a: b ", "--content-type=text/x")
        async with running(nsq_to_http, *arguments(nsqd, topic, *words, *given)):
            await publish(nsqd, topic, b"1", b"2")
            await all_finished(nsqd, topic, CHANNEL, 2)

        assert {"/a", "/b"} == {each.path_qs for each in server.asked}
        for each in server.asked:
            names = ("User-Agent", "X-Two", "Content-Type", "Authorization")
            assert ["mine", "a: b", "text/x", "Basic bWU6cyBlY3JldA=="] == [
                each.headers.get(name) or each.headers[name.lower()] for name in names
            ]
