"""nsq_to_http with a real nsqd and a real web server: every flag, and the effects of failures."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from urllib.parse import unquote_to_bytes

import pytest
from aiohttp import web

from sparq.tools import nsq_to_http, relay
from tests.client.scripted import listening
from tests.support.servers import NsqdServer, Server, free_port
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
    topic, bodies = new_topic(), [bytes(range(256)), b"x" * (1 << 20), b"%s\r\n\r\n", b"\x00"]
    async with web_server() as server:
        async with running(nsq_to_http, *arguments(nsqd, topic, f"--post={server.url}/in?k=v")):
            await publish(nsqd, topic, *bodies)
            await all_finished(nsqd, topic, CHANNEL, 4)

        assert sorted(bodies) == sorted(server.bodies)
        assert {("POST", "/in?k=v")} == {(each.method, each.path_qs) for each in server.asked}
        assert {"application/octet-stream"} == {
            each.headers["Content-Type"] for each in server.asked
        }
        agents = {each.headers["User-Agent"] for each in server.asked}
        assert all(re.fullmatch(r"nsq_to_http v1\.3\.0 sparq/\S+", agent) for agent in agents)


async def test_get_puts_each_message_into_the_url(nsqd: NsqdServer) -> None:
    """`--get` puts each message into the query as one percent-encoded value."""
    topic, bodies = new_topic(), [bytes(range(256)), b"a b&c=d#e", b"../..", b"%s%00"]
    async with web_server() as server:
        words = arguments(nsqd, topic, f"--get={server.url}/in?a=%41&b=%s&c=", "-channel=mine")
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, *bodies)
            await all_finished(nsqd, topic, "mine", 4)

        found = [
            re.fullmatch(r"/in\?a=%41&b=([\w.~%+-]*)&c=", each.path_qs) for each in server.asked
        ]
        assert sorted(bodies) == sorted(
            unquote_to_bytes(each[1].replace("+", " ")) for each in found if each
        )
        assert {"GET"} == {each.method for each in server.asked}
        assert all("Content-Type" not in each.headers for each in server.asked)


async def test_an_unsendable_message_does_not_delay_others(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """A message that would change the URL's path is logged and requeued without backoff.

    Other messages are sent meanwhile.
    """
    topic = new_topic()
    async with web_server() as server:
        words = arguments(nsqd, topic, f"--get={server.url}/in/%s", "--max-in-flight=1")
        async with running(nsq_to_http, *words, "--consumer-opt=backoff_multiplier,1m"):
            await publish(nsqd, topic, b"..", b"1", b"2")
            await until_seen(lambda: nsqd.channel(topic, CHANNEL).get("deferred_count") == 1)
            await server.wait_for_requests(2)

    assert ["/in/1", "/in/2"] == [each.path_qs for each in server.asked]
    assert " is not sent: its body would act as . or .. in the URL's path" in capfd.readouterr().err


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


@pytest.mark.parametrize("status", [200, 202, 204, 299])
async def test_2xx_finishes_a_post(nsqd: NsqdServer, status: int) -> None:
    """Any 2xx status finishes a POST at the first attempt."""
    topic = new_topic()
    async with web_server() as server:
        server.status = status
        async with running(nsq_to_http, *arguments(nsqd, topic, f"--post={server.url}")):
            await publish(nsqd, topic, b"once")
            await all_finished(nsqd, topic, CHANNEL, 1)

        assert [b"once"] == server.bodies


async def test_a_failure_makes_the_consumer_back_off(nsqd: NsqdServer) -> None:
    """After a failed request, nothing is sent until the backoff is over."""
    topic = new_topic()
    async with web_server() as server:
        server.status = 500
        words = arguments(nsqd, topic, f"--post={server.url}", "--max-in-flight=1")
        async with running(nsq_to_http, *words):
            await publish(nsqd, topic, b"1", b"2", b"3")
            await until_seen(lambda: (2, 0, 1) == stats(nsqd, topic, CHANNEL))

            assert 0 == nsqd.channel(topic, CHANNEL)["clients"][0]["ready_count"]
        assert [b"1"] == server.bodies


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


async def test_messages_do_not_time_out_during_slow_answers(nsqd: NsqdServer) -> None:
    """Messages do not time out while an answer is slow, nor while they wait for their turn."""
    topic = new_topic()

    async def answer(request: web.Request) -> web.Response:
        # Longer than nsqd's message timeout of 1.5 s, which also applies to the waiting message.
        await asyncio.sleep(1.9 if len(server.asked) == 1 else 0)
        return web.Response()

    async with web_server() as server:
        server.answer = answer
        words = arguments(nsqd, topic, f"--post={server.url}", "--consumer-opt=msg_timeout,1500ms")
        async with running(nsq_to_http, *words, "--n=1"):
            await publish(nsqd, topic, b"slow", b"waiting")
            await all_finished(nsqd, topic, CHANNEL, 2)

        assert {b"slow", b"waiting"} == set(server.bodies)
        assert (2, 0) == (len(server.asked), nsqd.channel(topic, CHANNEL)["timeout_count"])


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


async def test_the_connect_timeout(nsqd: NsqdServer) -> None:
    """`--http-client-connect-timeout` also limits the TLS handshake."""
    topic = new_topic()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(say_nothing) as address:
        words = arguments(
            nsqd, topic, f"--post=https://{address}", "--http-client-request-timeout=1h"
        )
        async with running(nsq_to_http, *words, "--http-client-connect-timeout=100ms"):
            await publish(nsqd, topic, b"nobody there")
            await until_seen(lambda: (0, 0, 1) == stats(nsqd, topic, CHANNEL))


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


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
async def test_modes_choose_the_server(nsqd: NsqdServer, mode: str) -> None:
    """`round-robin` keeps sending to a failing server; the other modes avoid it."""
    topic, count = new_topic(), 30
    async with web_server() as good, web_server() as bad:
        bad.status = 500
        words = (
            f"--post={good.url}",
            f"--post={bad.url}",
            f"--mode={mode}",
            SHORT_TIMEOUTS,
            NO_BACKOFF,
        )
        async with running(
            nsq_to_http, *arguments(nsqd, topic, *words, "--n=1", "--max-in-flight=1")
        ):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, count)

        assert count == len(set(good.bodies))
        failed = len(bad.asked)
        assert failed >= count / 2 if mode == "round-robin" else failed <= 1


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


async def test_a_message_waits_for_a_restarting_server(
    nsqd: NsqdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message waits for a restarting server without a requeue, which would take 90 s."""
    monkeypatch.setattr(relay, "PAUSES", (0.1,) * 1000)
    topic, port = new_topic(), free_port()
    async with running(nsq_to_http, *arguments(nsqd, topic, f"--post=http://127.0.0.1:{port}")):
        await publish(nsqd, topic, b"early")
        await until_seen(lambda: stats(nsqd, topic, CHANNEL)[1] == 1)
        async with web_server(port=port) as server:
            await all_finished(nsqd, topic, CHANNEL, 1)

            assert [b"early"] == server.bodies
            assert (0, 0, 0) == stats(nsqd, topic, CHANNEL)


async def test_sample_sends_a_share_of_the_messages(nsqd: NsqdServer) -> None:
    """`--sample` sends this share of the messages and finishes all; a share of 0 sends none."""
    topic, count = new_topic(), 400
    async with web_server() as server:
        words = arguments(nsqd, topic, f"--post={server.url}")
        async with running(nsq_to_http, *words, "--sample=0.25"):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, count)
        sent = len(server.asked)
        async with running(nsq_to_http, *words, "--sample=0"):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, 2 * count)

        assert 50 <= sent <= 160
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


async def test_status_lines_have_times_per_server(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """`--status-every` prints times after that many messages, in total and per server.

    The lines contain neither passwords nor queries.
    """
    topic, count = new_topic(), 40
    async with web_server() as server:
        url = server.url.replace("://", "://me:secret@")
        words = (f"--post={url}/a?token=hush", f"--post={url}/b", "--mode=round-robin")
        async with running(nsq_to_http, *arguments(nsqd, topic, *words, "--status-every=10")):
            await publish(nsqd, topic, *[b"%d" % number for number in range(count)])
            await all_finished(nsqd, topic, CHANNEL, count)
        said = capfd.readouterr().err

    times = r" - 99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
    for prefix, counts in (
        (r"\[aggregate\]:", [10, 20, 30, 40]),
        (rf"\[{server.url}/a\]:", [10, 20]),
    ):
        assert counts == [
            int(each) for each in re.findall(f"{prefix} finished (\\d+){times}", said)
        ]
    assert "WARNING: --status-every=10: percentiles of so few" in said
    assert not re.search("secret|hush", said)


async def test_sources_are_found_through_nsqlookupd(nsqd: NsqdServer, lookupd: Server) -> None:
    """Sources are found through nsqlookupd; `--consumer-opt` and the user agent reach nsqd."""
    topic = new_topic()
    await publish(nsqd, topic, b"found")
    async with web_server() as server:
        words = (f"--lookupd-http-address={lookupd.http}", f"--topic={topic}")
        options = ("--consumer-opt=client_id,me", "--consumer-opt=lookupd_poll_interval,50ms")
        async with running(nsq_to_http, *words, *options, f"--post={server.url}"):
            await all_finished(nsqd, topic, CHANNEL, 1)
            (client,) = nsqd.channel(topic, CHANNEL)["clients"]

        assert [b"found"] == server.bodies
        assert "me" == client["client_id"]
        assert re.match(r"nsq_to_http/1\.3\.0 sparq/", client["user_agent"])


def test_sigterm_ends_the_program(nsqd: NsqdServer) -> None:
    """SIGTERM ends the program with status 0; its log lines have NSQ's form."""
    words = arguments(nsqd, new_topic(), "--post=http://127.0.0.1:1", "--status-every=99")
    command = [sys.executable, "-m", "sparq.tools", "nsq_to_http", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()

    assert re.match(r"\[nsq_to_http\] \d{4}/\d\d/\d\d [\d:.]+ WARNING: --status-every=99", line)
    assert 0 == process.returncode
    assert re.fullmatch(rf"(\[.* INFO: nsqd {nsqd.tcp}: connected \(1\.3\.0\)\n)?", rest)


POST, TOPIC, NSQD = "--post=http://h", "--topic=t", "--nsqd-tcp-address=h:1"
