"""Messages shown over HTTP: pages of a channel and of the log, single messages, a search."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sparq.protocol.commands import attach, fin, rdy, req, sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.waiting import until

UNKNOWN = "0" * 16


async def get(nsqd: Daemon, path: str, **query: Any) -> dict[str, Any]:
    """Send a GET; check that the status is 200, and return the JSON answer."""
    status, answer = await nsqd.ask("GET", target(path, query))
    assert status == 200, (path, query, status, answer)
    found: dict[str, Any] = json.loads(answer)
    return found


async def refusal(nsqd: Daemon, method: str, path: str, **query: Any) -> tuple[int, str]:
    """Send a request that is refused; return its status and error message."""
    status, answer = await nsqd.ask(method, target(path, query))
    return status, json.loads(answer)["message"]


def target(path: str, query: dict[str, Any]) -> str:
    """A path with its parameters; `from_` stands for `from`."""
    parts = (f"{name.rstrip('_')}={quote(str(value))}" for name, value in query.items())
    return f"{path}?{'&'.join(parts)}"


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["body"] for message in answer["messages"]]


async def channel(nsqd: Daemon, *messages: bytes, name: str = "c") -> None:
    """Create topic t with a channel, and publish the messages."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post(f"/channel/create?topic=t&channel={name.replace('#', '%23')}")
    if messages:
        await nsqd.post("/mpub?topic=t", b"\n".join(messages))


async def pages(nsqd: Daemon, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Request a page, then each next one until the last."""
    answer = await get(nsqd, path, **query)
    yield answer
    while (token := answer["next"]) is not None:
        answer = await get(nsqd, path, **query, after=token)
        yield answer


# A channel's messages


async def test_waiting_messages_are_listed(nsqd: Daemon) -> None:
    """Waiting messages are listed in the order of the log, with these fields."""
    await channel(nsqd, b"one", b"two")

    page = await get(nsqd, "/channel/messages", topic="t", channel="c")

    first = page["messages"][0]
    assert bodies(page) == ["one", "two"]
    assert list(page) == ["topic", "channel", "state", "total", "messages", "next", "unreadable"]
    assert (page["state"], page["total"], page["next"], page["unreadable"]) == (
        "waiting",
        2,
        None,
        0,
    )
    assert list(first) == [
        *("id", "index", "time", "timestamp", "attempts", "size"),
        *("body", "encoding", "cut", "state"),
    ]
    assert first["index"] == (await nsqd.topic("t"))["first_index"]
    assert (first["attempts"], first["size"], first["state"]) == (0, 3, "waiting")
    assert first == await get(nsqd, "/message", topic="t", id=first["id"], channel="c")


async def test_messages_in_flight_are_listed_with_their_client(nsqd: Daemon) -> None:
    """A message in flight has `client`, `since`, `deadline`; after a disconnect no client."""
    await channel(nsqd, b"one", b"two")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await consumer.messages(1, finish=False)

    (message,) = (await get(nsqd, "/channel/messages", topic="t", channel="c", state="in_flight"))[
        "messages"
    ]

    assert list(message)[-5:] == ["state", "client", "since", "deadline", "in_flight_seconds"]
    assert (message["body"], message["attempts"], message["state"]) == ("one", 1, "in_flight")
    client = message["client"]
    assert (client["client_id"], client["hostname"], client["user_agent"]) == ("me", "h", "test/1")
    assert client["remote_address"].startswith("127.0.0.1:")
    assert message["time"] <= message["since"] < message["deadline"]
    assert 0 <= message["in_flight_seconds"] < 60
    await consumer.close()

    async def is_without_client() -> bool:
        page = await get(nsqd, "/channel/messages", topic="t", channel="c", state="in_flight")
        return [found["client"] for found in page["messages"]] == [None]

    await until(is_without_client)


async def test_deferred_messages_are_listed_by_due_time(nsqd: Daemon) -> None:
    """Publishes and requeues with a delay are listed in the order of their due times."""
    await channel(nsqd, b"requeued")
    await nsqd.post("/pub?topic=t&defer=900000", b"late")
    await nsqd.post("/pub?topic=t&defer=300000", b"early")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    consumer.send(rdy(1))
    _, data = await consumer.frame()
    consumer.send(rdy(0) + req(data[10:26], 600_000))

    async def are_three() -> bool:
        return bool((await nsqd.channel("t", "c"))["deferred_count"] == 3)

    await until(are_three)
    found = [
        page
        async for page in pages(
            nsqd, "/channel/messages", topic="t", channel="c", state="deferred", limit=1
        )
    ]

    assert [body for page in found for body in bodies(page)] == ["early", "requeued", "late"]
    assert {page["total"] for page in found} == {3}
    messages = [message for page in found for message in page["messages"]]
    assert [message["attempts"] for message in messages] == [0, 1, 0]
    assert [round(message["due_seconds"] / 300) for message in messages] == [1, 2, 3]
    assert messages[0]["due"] < messages[1]["due"] < messages[2]["due"]
    await consumer.close()


async def test_pages_list_each_message_once_during_changes(nsqd: Daemon) -> None:
    """A message that waits all the time is listed once, whatever is published or consumed."""
    await channel(nsqd, *[b"%d" % number for number in range(40)])
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    seen: list[str] = []
    async for page in pages(nsqd, "/channel/messages", topic="t", channel="c", limit=7):
        seen += bodies(page)
        if len(seen) == 14:
            await consumer.messages(20, finish=False)
            await nsqd.post("/mpub?topic=t", b"40\n41")
    await consumer.close()

    assert len(seen) == len(set(seen))
    assert seen == [*map(str, range(14)), *map(str, range(20, 42))]


@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
async def test_requeued_messages_are_listed_in_log_order(nsqd: Daemon, name: str) -> None:
    """Requeued messages are in log order, with their attempts; in ephemeral channels, too."""
    await channel(nsqd, name=name)
    consumer = await Consumer.identified(nsqd, sub("t", name))
    await nsqd.post("/mpub?topic=t", b"a\nb\nc\nd")
    consumer.send(rdy(3))
    frames = [await consumer.frame() for _ in range(3)]
    consumer.send(rdy(0))
    consumer.send(fin(frames[0][1][10:26]) + req(frames[2][1][10:26], 0))

    async def is_settled() -> bool:
        figures = await nsqd.channel("t", name)
        return (figures["depth"], figures["in_flight_count"]) == (2, 1)

    await until(is_settled)
    page = await get(nsqd, "/channel/messages", topic="t", channel=name)
    log = await get(nsqd, "/topic/messages", topic="t", channel=name)
    await consumer.close()

    assert [(m["body"], m["attempts"]) for m in page["messages"]] == [("c", 1), ("d", 0)]
    assert [(m["body"], m["state"], m["attempts"]) for m in log["messages"]] == [
        *(("a", "finished", None), ("b", "in_flight", 1)),
        *(("c", "waiting", 1), ("d", "waiting", 0)),
    ]


async def test_uncommitted_messages_of_a_range_reader_are_listed(nsqd: Daemon) -> None:
    """Uncommitted messages are listed as waiting, deferred ones too, in the order of the log."""
    await channel(nsqd, b"a", b"b")
    await nsqd.post("/pub?topic=t&defer=60000", b"c")
    reader = await Consumer.identified(nsqd)
    reader.send(attach("t", "c"))
    await reader.frame()

    page = await get(nsqd, "/channel/messages", topic="t", channel="c")
    figures = await nsqd.channel("t", "c")
    await reader.close()

    assert bodies(page) == ["a", "b", "c"]
    assert page["total"] == figures["depth"] == 3
    assert (figures["range_query"], figures["range_commit_seconds"]) == ("test/1", None)


# Bodies


async def test_bodies_are_text_or_base64_and_may_be_cut_or_left_out(nsqd: Daemon) -> None:
    """A cut never splits a character; bodies that are not UTF-8 are base64; `raw` is exact."""
    letters = "grün".encode()
    await channel(nsqd, letters, b"\xff\x00", b"x" * 100)
    whole = await get(nsqd, "/topic/messages", topic="t")
    assert [(m["body"], m["encoding"], m["cut"]) for m in whole["messages"]] == [
        ("grün", "text", False),
        (base64.b64encode(b"\xff\x00").decode(), "base64", False),
        ("x" * 100, "text", False),
    ]
    cut = await get(nsqd, "/topic/messages", topic="t", body_bytes=3)
    assert [(m["body"], m["cut"], m["size"]) for m in cut["messages"]] == [
        *(("gr", True, 5), ("/wA=", False, 2), ("xxx", True, 100)),
    ]
    none = await get(nsqd, "/topic/messages", topic="t", bodies="false")
    assert "body" not in none["messages"][0]
    first = whole["messages"][0]["id"]
    status, headers, body = await nsqd.raw(
        f"GET /message?topic=t&id={first}&raw=true HTTP/1.1", b"\r\n"
    )
    assert (status, body) == (200, letters)
    assert headers["content-type"] == "application/octet-stream"


async def test_large_bodies_end_a_page_early(tmp_path: Path) -> None:
    """12 MB of messages take several pages, which list each message once."""
    nsqd = await start(tmp_path)
    await channel(nsqd)
    for number in range(12):
        await nsqd.post("/pub?topic=t", b"%02d" % number + b"x" * 1_000_000)
    for path in ("/channel/messages", "/topic/search"):
        query = {"topic": "t", "channel": "c", "body_bytes": 1 << 20, "limit": 1000}
        found = [page async for page in pages(nsqd, path, **query)]

        assert len(found) > 1
        numbers = [body[:2] for page in found for body in bodies(page)]
        assert numbers == [f"{number:02}" for number in range(12)]
    await stop(nsqd)


# The log


async def test_the_log_is_listed_from_a_position_and_followed(nsqd: Daemon) -> None:
    """`from` is an end, an index, last:N or a time; at the end `next` finds later messages."""
    await channel(nsqd, *[b"%d" % number for number in range(10)])
    first = int((await nsqd.topic("t"))["first_index"])
    for place, numbers in (
        ("earliest", range(10)),
        ("latest", range(0)),
        ("last:3", range(7, 10)),
        ("last:99", range(10)),
        (first + 8, range(8, 10)),
        ("-1h", range(10)),
        ("2001-01-01", range(10)),
    ):
        page = await get(nsqd, "/topic/messages", topic="t", from_=place)
        assert bodies(page) == [str(number) for number in numbers], place
        assert (page["first_index"], page["end_index"]) == (str(first), str(first + 10))
        assert page["next"] == str(first + 10)
        assert page["older_are_gone"] is False

    halves = await get(nsqd, "/topic/messages", topic="t", limit=5)
    rest = await get(nsqd, "/topic/messages", topic="t", limit=5, after=halves["next"])
    assert bodies(halves) + bodies(rest) == [str(number) for number in range(10)]
    assert rest["next"] == str(first + 10)
    await nsqd.post("/pub?topic=t", b"new")
    assert bodies(await get(nsqd, "/topic/messages", topic="t", after=rest["next"])) == ["new"]


async def test_deleted_messages_are_reported(tmp_path: Path) -> None:
    """A deleted id gets 404 with the log's first index; an old `from` gets `older_are_gone`."""
    nsqd = await start(tmp_path, max_bytes_per_file=4096, retention_bytes=8192)
    await channel(nsqd, b"x" * 3000)
    first = (await get(nsqd, "/topic/messages", topic="t"))["messages"][0]
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    for _ in range(10):
        await nsqd.post("/pub?topic=t", b"x" * 3000)
    await consumer.messages(11)

    async def is_gone() -> bool:
        return (await nsqd.topic("t"))["first_index"] != first["index"]

    await until(is_gone)
    status, message = await refusal(nsqd, "GET", "/message", topic="t", id=first["id"])
    assert (status, message.partition(" published")[0]) == (
        404,
        f"MESSAGE_NOT_FOUND: the log begins with index {(await nsqd.topic('t'))['first_index']},",
    )
    page = await get(nsqd, "/topic/messages", topic="t", from_=first["index"])
    assert page["older_are_gone"] is True
    times = await get(nsqd, "/topic/times", topic="t", buckets=4)
    assert sum(bucket["count"] for bucket in times["buckets"]) == len(page["messages"])
    await consumer.close()
    await stop(nsqd)


async def test_damaged_messages_are_counted_and_skipped(nsqd: Daemon) -> None:
    """Damaged messages are counted, not shown; damaged_messages grows when a channel reads."""
    await channel(nsqd)
    for number in range(3):
        await nsqd.post("/pub?topic=t", b"message %d" % number)
    drop_from_memory(nsqd)
    (log,) = (Path(nsqd.nsqd.options.data_path) / "topics").rglob("*.log")
    with log.open("r+b") as file:
        at = file.read().index(b"message 1")
        file.seek(at)
        file.write(b"massage 1")

    page = await get(nsqd, "/channel/messages", topic="t", channel="c")
    found = await get(nsqd, "/topic/search", topic="t", text="age", budget_ms=1000)
    assert (bodies(page), page["unreadable"], page["total"]) == (["message 0", "message 2"], 1, 3)
    assert (bodies(found), found["unsearched"]) == (["message 0", "message 2"], 1)
    assert (await nsqd.topic("t"))["damaged_messages"] == 0
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await consumer.messages(2)
    assert (await nsqd.topic("t"))["damaged_messages"] == 1
    page = await get(nsqd, "/topic/messages", topic="t")
    assert (bodies(page), page["unreadable"]) == (["message 0", "message 2"], 0)
    await consumer.close()


def drop_from_memory(nsqd: Daemon) -> None:
    """Drop the topic's messages from memory, so that they are read from the disk."""
    log = nsqd.nsqd.broker.topics["t"].stream.log
    log._cache.discard_all(log._owner, [log.first_index])
    log._recent = None


async def test_a_file_deleted_while_it_is_read_is_no_failure(
    nsqd: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error gets 500, unless the log has deleted the file meanwhile."""
    await channel(nsqd, b"a")
    log = nsqd.nsqd.broker.topics["t"].stream.log
    drop_from_memory(nsqd)
    (file,) = (Path(nsqd.nsqd.options.data_path) / "topics").rglob("*.log")
    file.rename(file.with_suffix(".away"))
    status, message = await refusal(nsqd, "GET", "/topic/messages", topic="t")
    assert (status, message.partition(":")[0]) == (500, "INTERNAL_ERROR")
    status, message = await refusal(nsqd, "GET", "/topic/search", topic="t")
    assert (status, message.partition(":")[0]) == (500, "INTERNAL_ERROR")
    monkeypatch.setattr(type(log.inspection), "has", lambda _inspection, _part: False)
    assert (await get(nsqd, "/topic/messages", topic="t"))["messages"] == []
    assert (await get(nsqd, "/topic/search", topic="t"))["done"] is True
    file.with_suffix(".away").rename(file)


# Times


async def test_times_count_messages_by_bucket(nsqd: Daemon) -> None:
    """/topic/times counts all messages in time buckets, each with its first message's index."""
    await channel(nsqd, b"a", b"b")
    await nsqd.post("/pub?topic=t", b"c")
    times = await get(nsqd, "/topic/times", topic="t", channel="c", buckets=7)

    log = (await get(nsqd, "/topic/messages", topic="t"))["messages"]
    assert sum(bucket["count"] for bucket in times["buckets"]) == 3
    assert len(times["buckets"]) == 7
    assert (times["buckets"][0]["count"], times["buckets"][-1]["count"]) == (2, 1)
    assert times["buckets"][0]["index"] == log[0]["index"]
    assert times["buckets"][-1]["index"] == log[2]["index"]
    assert times["from"] == times["buckets"][0]["time"] == log[0]["time"]
    assert times["from"] < times["to"]
    assert times["cursor_time"] == log[0]["time"]
    await nsqd.post("/topic/create?topic=empty")
    empty = await get(nsqd, "/topic/times", topic="empty")
    assert (empty["from"], empty["to"], empty["buckets"]) == (None, None, [])


# Refusals


GETS = ("/channel/messages", "/topic/messages", "/message", "/topic/search", "/topic/times")


@pytest.mark.parametrize("path", GETS)
async def test_unknown_topics_and_channels_are_not_found(nsqd: Daemon, path: str) -> None:
    """Unknown topics and channels get 404, missing or bad names 400, with NSQ's codes."""
    query = {"topic": "u", "channel": "c", "id": UNKNOWN}
    assert await refusal(nsqd, "GET", path, **query) == (404, "TOPIC_NOT_FOUND")
    await channel(nsqd)
    query |= {"topic": "t", "channel": "d"}
    assert await refusal(nsqd, "GET", path, **query) == (404, "CHANNEL_NOT_FOUND")
    status, answer = await nsqd.ask("GET", path)
    assert (status, json.loads(answer)["message"]) == (400, "MISSING_ARG_TOPIC")
    query["channel"] = "no name"
    assert await refusal(nsqd, "GET", path, **query) == (400, "INVALID_ARG_CHANNEL")


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/channel/messages", {"state": "finished"}, "INVALID_ARG_STATE: one of waiting"),
        ("/channel/messages", {"after": "1"}, "INVALID_ARG_AFTER"),
        ("/topic/messages", {"from_": "yesterday"}, "INVALID_ARG_FROM: use earliest"),
        ("/topic/messages", {"after": "1.2"}, "INVALID_ARG_AFTER"),
        ("/message", {"id": "7"}, "INVALID_ARG_ID: 16 hexadecimal digits"),
        ("/message", {}, "MISSING_ARG_ID"),
        ("/topic/search", {"to": "-"}, "INVALID_ARG_TO"),
        ("/topic/search", {"regex": "(?=a)"}, "INVALID_ARG_REGEX"),
        ("/topic/search", {"budget_ms": "1001"}, "INVALID_ARG_BUDGET_MS"),
        ("/topic/times", {"buckets": "0"}, "INVALID_ARG_BUCKETS"),
    ],
)
async def test_invalid_parameters_are_named(
    nsqd: Daemon, path: str, query: dict[str, Any], code: str
) -> None:
    """A bad parameter gets 400 with its name and the values that are allowed."""
    await channel(nsqd)
    status, message = await refusal(nsqd, "GET", path, topic="t", channel="c", **query)
    assert (status, message[: len(code)]) == (400, code)


async def test_another_nodes_message_is_not_found(nsqd: Daemon) -> None:
    """An id of another node gets MESSAGE_NOT_FOUND, in an unknown topic TOPIC_NOT_FOUND."""
    await channel(nsqd, b"a")
    status, message = await refusal(nsqd, "GET", "/message", topic="t", id="f" * 16)
    assert (status, message.partition(":")[0]) == (404, "MESSAGE_NOT_FOUND")
    status, message = await refusal(nsqd, "GET", "/message", topic="empty", id="f" * 16)
    assert (status, message) == (404, "TOPIC_NOT_FOUND")


async def test_inspection_during_a_stop_is_refused(nsqd: Daemon) -> None:
    """During a stop, requests get 503 EXITING: the threads that read are about to end."""
    await channel(nsqd, b"a")
    nsqd.nsqd.exiting = True
    assert await refusal(nsqd, "GET", "/topic/messages", topic="t") == (503, "EXITING")
    nsqd.nsqd.exiting = False
