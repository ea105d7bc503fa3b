"""Flags that NSQ does not have: limits on what clients create, and access over HTTP."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

from sparq.protocol.commands import mpub, pub, rdy, sub
from tests.scenarios.starting.effects.common import ERROR, refused
from tests.support.flag_rows import FlagDaemons, FlagServer, Row
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

TOKEN = "s3cr3t-t0ken"
TOPICS = 3
CHANNELS = 2
CONNECTIONS = 4
TOPIC_BYTES = 100_000
TOPIC_MESSAGES = 5
CLIENT_RATE = 5
RATE = 20


def ask(
    server: FlagServer, method: str, path: str, *, token: str = "", body: bytes | None = None
) -> int:
    """Send one request, with a token if given; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=15)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body, headers)
        return connection.getresponse().status


def make_topics(server: FlagServer) -> None:
    """Create the allowed number of topics; they may exist already."""
    for number in range(TOPICS):
        assert ask(server, "POST", f"/topic/create?topic=t{number}", token=TOKEN) == 200


def max_topics(server: FlagServer) -> None:
    """A topic beyond the limit is refused."""
    make_topics(server)
    text = f"the limit of {TOPICS} topics is reached"
    with V2Client(server) as line:
        assert line.ask(pub("more", b"x")) == (ERROR, f"E_PUB_FAILED PUB failed {text}".encode())
        assert line.ask(pub("t0", b"x")) == OK
    assert ask(server, "POST", "/topic/create?topic=more", token=TOKEN) == 403


def max_channels(server: FlagServer) -> None:
    """A channel beyond a topic's limit is refused."""
    make_topics(server)
    for number in range(CHANNELS):
        with V2Client(server) as line:
            assert line.ask(sub("t1", f"c{number}")) == OK
    text = f"E_SUB_FAILED SUB failed the limit of {CHANNELS} channels is reached"
    refused(server, text, sub("t1", "more"))


def max_topic_bytes(server: FlagServer) -> None:
    """A topic without consumers accepts messages up to this number of bytes."""
    make_topics(server)
    text = f"E_PUB_FAILED PUB failed the limit of {TOPIC_BYTES} bytes for topic t2 is reached"
    body = b"x" * (TOPIC_BYTES // 10)
    with V2Client(server) as line:
        for _ in range(10):
            answer = line.ask(pub("t2", body))
            if answer != OK:
                break
        assert answer == (ERROR, text.encode())


def max_connections(server: FlagServer) -> None:
    """Connections beyond the limit are closed immediately; existing ones stay open."""
    with contextlib.ExitStack() as stack:
        lines: list[V2Client] = []

        def fills() -> bool:
            # Connections of other checks may not be closed yet.
            try:
                line = stack.enter_context(V2Client(server))
                assert line.ask(b"NOP\n" + pub("t0", b"x"))[0] in (0, ERROR)
            except ConnectionError:
                return True
            lines.append(line)
            return False

        make_topics(server)
        wait_for(fills)
        assert 1 <= len(lines) <= CONNECTIONS
        for line in lines:
            assert line.ask(pub("t0", b"x")) == OK


def drop_oldest(server: FlagServer) -> None:
    """A full topic accepts new messages and drops the oldest."""
    for number in range(TOPIC_MESSAGES + 3):
        assert ask(server, "POST", "/pub?topic=ring", body=b"%d" % number) == 200
    assert drained(server, "ring")[0] == b"3"


def max_attempts(server: FlagServer) -> None:
    """A message with more attempts than this is moved to the dead-letter topic."""
    assert ask(server, "POST", "/topic/create?topic=poison") == 200
    with V2Client(server) as line:
        assert line.ask(sub("poison", "c")) == OK
        line.send(rdy(1))
        assert ask(server, "POST", "/pub?topic=poison", body=b"bad") == 200
        for attempts in (1, 2):
            (message,) = line.messages(1)
            assert message.attempts == attempts
            line.send(b"REQ %s 0\n" % message.id)
    wait_for(lambda: server.channel("poison", "c")["dead_letter_count"] == 1)
    assert server.channel("poison.dead", "redrive")["depth"] == 1


def max_topic_messages(server: FlagServer) -> None:
    """A topic has at most this number of messages."""
    for number in range(TOPIC_MESSAGES + 3):
        assert ask(server, "POST", "/pub?topic=bounded", body=b"%d" % number) == 200
    assert len(drained(server, "bounded")) == TOPIC_MESSAGES


def drained(server: FlagServer, topic: str) -> list[bytes]:
    """Return the messages that a new consumer gets."""
    with V2Client(server) as line:
        assert line.ask(sub(topic, "c")) == OK
        line.send(rdy(2 * TOPIC_MESSAGES))
        return [message.body for message in line.messages_within(1)]


def max_client_publish_rate(server: FlagServer) -> None:
    """A client that publishes too fast is delayed, then refused, and stays connected.

    Other clients are not affected.
    """
    # One publish is accepted as a whole, so a large one uses up seconds of the rate at once. Many
    # small ones were refused or not depending on the machine: while it is slow, the rate recovers.
    with V2Client(server) as hasty, V2Client(server) as calm:
        wait_for(lambda: is_delayed(server, hasty, "hasty", CLIENT_RATE))
        assert hasty.ask(mpub("hasty", [b"x"] * 6 * CLIENT_RATE)) == OK
        for _ in range(3):
            frame, text = hasty.ask(pub("hasty", b"x"))
            assert frame == ERROR
            assert text.startswith(
                b"E_PUB_FAILED PUB failed the limit of %d messages per second for topic hasty or "
                b"%d messages per second" % (RATE, CLIENT_RATE)
            )
        assert calm.ask(pub("hasty", b"x")) == OK


def max_publish_rate(server: FlagServer) -> None:
    """Publishes of many clients together, beyond the topic's rate, are delayed."""

    def next_is_delayed() -> bool:
        with V2Client(server) as line:
            return is_delayed(server, line, "many", RATE)

    wait_for(next_is_delayed)


def is_delayed(server: FlagServer, line: V2Client, topic: str, count: int) -> bool:
    """Publish `count` messages; return whether nsqd has held back any publish to the topic."""
    assert line.ask(mpub(topic, [b"x"] * count)) == OK
    (found,) = server.get_json(f"/stats?format=json&topic={topic}")["topics"]
    return bool(found["held_count"])


def policies(server: FlagServer) -> None:
    """A setting of one topic is read from the file."""
    make_topics(server)
    with V2Client(server) as line:
        assert line.ask(sub("t0", "alone")) == OK
        refused(
            server,
            "E_SUB_FAILED SUB failed consumers for t0:alone exceeds limit of 1",
            sub("t0", "alone"),
        )


def http_token(server: FlagServer) -> None:
    """Requests that change something require this token."""
    assert ask(server, "POST", "/topic/create?topic=t0") == 401
    assert ask(server, "POST", "/topic/create?topic=t0", token="other") == 401
    assert ask(server, "POST", "/topic/create?topic=t0", token=TOKEN) == 200
    assert ask(server, "GET", "/stats") == 200


def debug_routes(server: FlagServer) -> None:
    """The debug routes do not exist."""
    for method, path in (("GET", "/debug/pprof/"), ("POST", "/debug/freememory")):
        assert ask(server, method, path, token=TOKEN) == 404


def go_compatible(server: FlagServer) -> None:
    """nsqd starts with a value out of bounds, and logs a warning."""
    assert "too large: use" in server.log_text
    assert "(ignored because of --go-compatible)" in server.log_text


@contextlib.contextmanager
def neighbours(daemons: FlagDaemons, folder: Path) -> Iterator[None]:
    """Write the policy file of the rows."""
    file = folder / "policies.toml"
    file.write_text('[[policies]]\ntopic = "t0"\nchannel = "alone"\nmax_channel_consumers = 1\n')
    daemons.places["policies"] = str(file)
    yield


GROUPS = {
    "as Go": [
        Row("go-compatible", True, go_compatible),
        Row("broadcast-tcp-port", 70_000, go_compatible),
    ],
    "rings": [
        Row("max-topic-messages", TOPIC_MESSAGES, max_topic_messages),
        Row("drop-oldest", True, drop_oldest),
        Row("max-attempts", 2, max_attempts),
    ],
    "paced": [
        Row("max-publish-rate", RATE, max_publish_rate),
        Row("max-client-publish-rate", CLIENT_RATE, max_client_publish_rate),
    ],
    "limited": [
        Row("data-path", "{data}", make_topics),
        Row("max-topics", TOPICS, max_topics),
        Row("max-channels", CHANNELS, max_channels),
        Row("max-topic-bytes", TOPIC_BYTES, max_topic_bytes),
        Row("policies", "{policies}", policies),
        Row("max-connections", CONNECTIONS, max_connections),
        Row("http-token", TOKEN, http_token),
        Row("debug-routes", False, debug_routes),
    ],
}
