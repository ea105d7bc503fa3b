"""The API, held against its OpenAPI document: figures, messages, actions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from sparq.nsqadmin.access.roles import RIGHTS
from sparq.nsqadmin.v2 import site
from sparq.nsqadmin.v2.schemas import SCHEMAS, of_type
from sparq.protocol.commands import rdy, sub
from tests.nsqadmin.v2.conftest import Api
from tests.nsqd.daemon import Consumer


async def fill(api: Api, count: int = 6, topic: str = "t") -> list[str]:
    """Publish in turns at both nodes."""
    bodies = [f'{{"n": {number}}}' for number in range(count)]
    for number, body in enumerate(bodies):
        await (api.one, api.two)[number % 2].post(f"/pub?topic={topic}", body.encode())
    return bodies


async def seen(api: Api, path: str, condition: Any, **query: Any) -> Any:
    """Ask until an answer is as expected; each time for the next snapshot."""
    async with asyncio.timeout(20):
        told = await api.get(path, **query)
        while not condition(told):
            told = await api.get(path, after=told["number"], **query)
    return told


async def test_every_figure_route_answers_as_documented(api: Api) -> None:
    """The cluster, its lists, one of each, the last hour."""
    await fill(api)
    consumer = await Consumer.introduced(api.one, sub("t", "c"))
    consumer.send(rdy(1))
    await consumer.frame()

    overview = await seen(api, "/overview", lambda told: told["totals"]["messages"] == 6)

    assert (2, 1, 1) == tuple(
        overview["totals"][name] for name in ("nodes_up", "topics", "channels")
    )
    assert not overview["has_go"]
    topics = await api.get("/topics", sort="-waiting", filter="T")
    assert (1, "t", 5) == (
        topics["total"],
        topics["rows"][0]["topic"],
        topics["rows"][0]["waiting"],
    )
    topic = await api.get("/topics/t")
    assert sorted(api.nodes) == sorted(part["node"] for part in topic["nodes"])
    assert ["c"] == [each["channel"] for each in topic["channels"]]
    channel = await api.get("/topics/t/c")
    assert (5, 1) == (channel["channel"]["depth"], channel["channel"]["in_flight"])
    assert [("h", 1)] == [(each["hostname"], each["connections"]) for each in channel["clients"]]
    channels = await api.get("/channels", topic="t", state="ok", limit=1)
    assert 1 == channels["total"]
    nodes = await api.get("/nodes", sort="-waiting")
    assert sorted(api.nodes) == sorted(row["address"] for row in nodes["rows"])
    node = await api.get(f"/nodes/{api.nodes[0]}", sort="-depth")
    assert ("up", 1, 1) == (
        node["node"]["state"],
        node["topics"]["total"],
        node["channels"]["total"],
    )
    assert [] == [n for n in (await api.get("/attention"))["notices"] if n["level"] == "bad"]
    for query in ({}, {"topic": "t"}, {"topic": "t", "channel": "c"}, {"node": api.nodes[0]}):
        history = await api.get("/history", **query)
        assert len(history["time"]) == len(history["depth"]) > 0
    assert 1 == (await api.get("/clients"))["total"]
    assert 1 == (await api.get("/clients", topic="t", channel="c", filter="TEST/1"))["total"]
    await consumer.close()


async def test_messages_of_all_nodes(api: Api) -> None:
    """Peek, log, search, one message, its body, times."""
    bodies = await fill(api)

    page = await api.get("/messages", topic="t", channel="c", limit=4)
    rest = await api.get("/messages", topic="t", channel="c", after=page["next"])
    assert bodies == [each["body"] for each in [*page["messages"], *rest["messages"]]]
    log = await api.get("/log", topic="t", from_="last:1", channel="c")
    assert bodies[-2:] == [each["body"] for each in log["messages"]]
    await api.one.post("/pub?topic=t", b"=1+1")
    later = await api.get("/log", topic="t", after=log["next"])
    assert ["=1+1"] == [each["body"] for each in later["messages"]]
    found = await api.get("/search", topic="t", json="n >= 4")
    assert (bodies[4:], True) == ([each["body"] for each in found["messages"]], found["done"])
    message = later["messages"][0]
    one = await api.get("/message", topic="t", id=message["id"], channel="c")
    assert [("waiting", message["node"])] == [(m["state"], m["node"]) for m in one["messages"]]
    asked = {"topic": "t", "id": message["id"], "node": message["node"]}
    status, body, answer = await api.send("GET", "/body", **asked)
    assert (200, b"=1+1") == (status, body)
    assert "nosniff" == answer.headers["X-Content-Type-Options"]
    times = await api.get("/times", topic="t", channel="c", buckets=5)
    assert 7 == sum(bucket["count"] for bucket in times["buckets"])
    preview = await api.get("/seek", topic="t", channel="c", to="latest")
    assert (0, 0) == (preview["again"], preview["waiting"])


async def test_a_search_streams_its_progress(api: Api) -> None:
    """Events until all was looked at, then an end."""
    await fill(api, 10)

    status, told, answer = await api.send(
        "GET", "/search", topic="t", text="n", stream="true", limit=1000
    )

    assert (200, "text/event-stream") == (status, answer.content_type)
    events = [
        dict(line.split(": ", 1) for line in each.split("\n"))
        for each in told.decode().split("\n\n")
        if each
    ]
    assert "end" == events[-1]["event"]
    assert json.loads(events[-1]["data"])["done"]
    steps = [json.loads(each["data"]) for each in events[:-1]]
    assert 10 == sum(len(step["messages"]) for step in steps)
    assert steps[-1]["progress"] == 1.0


async def test_actions_have_their_effect(api: Api) -> None:
    """Whatever a page can do, with its report, on the right node, in the audit log."""
    await fill(api)
    messages = (await api.get("/messages", topic="t", channel="c"))["messages"]
    chosen = [f"{each['node']}/{each['id']}" for each in messages[:3]]

    done = await api.post(
        "/actions",
        {"action": "finish_message", "topic": "t", "channel": "c", "messages": chosen},
    )
    assert ("done", 3) == (done["result"], sum(len(o["answer"]["done"]) for o in done["outcomes"]))
    left = await api.get("/messages", topic="t", channel="c")
    assert [each["id"] for each in messages[3:]] == [each["id"] for each in left["messages"]]

    back = {"topic": "t", "channel": "c", "to": "earliest"}
    preview = await api.get("/seek", **back)
    assert (3, 6) == (preview["again"], preview["waiting"])
    assert "done" == (await api.post("/seek", back))["result"]
    assert 6 == (await api.get("/messages", topic="t", channel="c"))["total"]

    paused = await api.post("/actions", {"action": "pause_channel", "topic": "t", "channel": "c"})
    assert "done" == paused["result"]
    assert (await api.one.channel("t", "c"))["paused"]
    copied = {"action": "copy_message", "topic": "t", "messages": chosen[:1], "to": "u"}
    assert "done" == (await api.post("/actions", copied))["result"]

    audit = await api.get("/audit", limit=50)
    actions = [entry["action"] for entry in audit["entries"]]
    assert ["copy_message", "pause_channel", "seek_channel", "finish_message"] == actions[:4]


async def test_what_is_destroyed_is_typed(api: Api) -> None:
    """And is refused without."""
    await fill(api)
    order = {"action": "empty_channel", "topic": "t", "channel": "c"}

    refused = await api.post("/actions", {**order, "typed": "t"}, status=400)
    assert "NAME_NOT_TYPED" == refused["message"]
    assert 3 == (await api.one.channel("t", "c"))["depth"]
    assert "done" == (await api.post("/actions", {**order, "typed": "c"}))["result"]
    assert 0 == (await api.one.channel("t", "c"))["depth"]


QUESTIONS: list[tuple[str, dict[str, str], int, str]] = [
    ("/topics", {"limit": "x"}, 400, "INVALID_ARG_LIMIT: use a number from 1 to 1000"),
    ("/topics", {"limit": "0"}, 400, "INVALID_ARG_LIMIT"),
    ("/topics", {"sort": "colour"}, 400, "INVALID_ARG_SORT: sort must be one of"),
    ("/nodes", {"sort": "colour"}, 400, "INVALID_ARG_SORT"),
    ("/channels", {"state": "sad"}, 400, "INVALID_ARG_STATE"),
    ("/topics/none", {}, 404, "TOPIC_NOT_FOUND"),
    ("/topics/t/none", {}, 404, "CHANNEL_NOT_FOUND"),
    ("/nodes/a:1", {}, 404, "NODE_NOT_FOUND"),
    ("/messages", {"channel": "c"}, 400, "MISSING_ARG_TOPIC"),
    ("/messages", {"topic": "t", "channel": "c", "bodies": "x"}, 400, "INVALID_ARG_BODIES"),
    ("/messages", {"topic": "t", "channel": "none"}, 404, "CHANNEL_NOT_FOUND"),
    ("/messages", {"topic": "t", "channel": "c", "after": "x"}, 400, "INVALID_ARG_AFTER"),
    ("/messages", {"topic": "t", "channel": "c", "nodes": "a:22"}, 404, "NODE_NOT_FOUND"),
    ("/log", {"topic": "none"}, 404, "TOPIC_NOT_FOUND"),
    ("/log", {"topic": "t", "from": "soon"}, 400, "INVALID_ARG_FROM"),
    ("/message", {"topic": "t", "id": "x"}, 400, "INVALID_ARG_ID"),
    ("/message", {"topic": "t", "id": "0" * 16}, 404, "MESSAGE_NOT_FOUND"),
    ("/body", {"topic": "t", "id": "0" * 16, "node": "a:22"}, 404, "NODE_NOT_FOUND"),
    ("/seek", {"topic": "t", "channel": "c", "to": "5"}, 400, "INVALID_ARG_TO: an index"),
    ("/export", {"what": "messages"}, 400, "MISSING_ARG_TOPIC"),
    ("/export", {"what": "topics", "sort": "x"}, 400, "INVALID_ARGUMENT"),
    ("/export", {"what": "log", "topic": "none"}, 404, "TOPIC_NOT_FOUND"),
]  # fmt: skip
ORDERS: list[tuple[str, Any, int, str]] = [
    ("/actions", [], 400, "INVALID_BODY"),
    ("/actions", {"action": 5, "topic": "t"}, 400, "INVALID_BODY: action"),
    ("/actions", {"action": "explode", "topic": "t"}, 400, "INVALID_ACTION"),
    ("/actions", {"action": "x", "topic": "t", "messages": ["x"]}, 400, "INVALID_BODY"),
    ("/actions", {"action": "x", "topic": "t", "messages": "x"}, 400, "INVALID_BODY"),
    ("/seek", {"topic": "t", "channel": "c", "to": "5"}, 400, "INVALID_ARG_TO"),
    ("/seek", {"topic": "t", "channel": "c"}, 400, "MISSING_ARG_TO"),
    ("/seek", {"topic": "t", "channel": "c", "to": "-1h", "nodes": ["a:2"]}, 404, "NODE_NOT"),
    ("/nodes/a:1/forget", {}, 404, "NODE_NOT_FOUND"),
]  # fmt: skip


async def test_wrong_questions(api: Api) -> None:
    """Each is refused with a code and, where it helps, a sentence."""
    for path, query, status, words in QUESTIONS:
        told = await api.get(path, status, **query)
        assert told["message"].startswith(words), (path, query)


async def test_wrong_orders(api: Api) -> None:
    """Nothing is done, and why."""
    for path, body, status, words in ORDERS:
        told = await api.post(path, body, status)
        assert told["message"].startswith(words), (path, body)


async def test_bodies_are_for_their_role_alone(api: Api) -> None:
    """An operator, and a reader, see all but the bodies, in exports, too."""
    await fill(api)
    asked = {"topic": "t", "channel": "c"}
    for token in ("read", "operate"):
        page = await api.get("/messages", token=token, **asked)
        assert not any("body" in message for message in page["messages"])
        for path, query in (
            ("/messages", {**asked, "bodies": "true"}),
            ("/search", {"topic": "t", "text": "n"}),
            ("/body", {"topic": "t", "id": "0" * 16, "node": api.nodes[0]}),
            ("/export", {"what": "search", "topic": "t", "text": "n"}),
        ):
            assert "FORBIDDEN" == (await api.get(path, 403, token=token, **query))["message"]
        _, told, _ = await api.send(
            "GET", "/export", token=token, what="messages", format="jsonl", **asked
        )
        assert 6 == len(told.splitlines())
        assert b"body" not in told
    status, _, _ = await api.send("GET", "/overview", token="")
    assert status in (401, 403)


def shape(method: str, path: str) -> str:
    """A route without the names of its parameters."""
    parts = ["*" if part[:1] in (":", "{") else part for part in path.split("/")]
    return f"{method.upper()} {'/'.join(parts)}"


async def test_the_document_and_the_server_say_the_same(api: Api) -> None:
    """Every route is documented, has a right, and nothing else is documented."""
    served = {shape(route.method, route.path) for route in site.routes(api.admin.services)}
    documented = {
        shape(method, path) for path, methods in api.document["paths"].items() for method in methods
    }
    rights = {shape(r.method, r.path) for r in RIGHTS if r.path.startswith("/api/v2/")}

    assert served == documented == rights
    assert "3.1.0" == api.document["openapi"]
    names = [o["operationId"] for path in api.document["paths"].values() for o in path.values()]
    assert len(names) == len(set(names))
    text = json.dumps(api.document)
    for name in SCHEMAS:
        assert name in text
    with pytest.raises(TypeError, match="no schema"):
        of_type(complex)


async def test_a_client_waits_for_the_next_picture(api: Api) -> None:
    """It is told of a change without polling."""
    first = await api.get("/overview")
    waiting = asyncio.create_task(api.get("/overview", after=first["number"]))
    await fill(api, 2)

    assert (await waiting)["number"] > first["number"]


async def test_a_node_that_is_gone_can_be_forgotten(api: Api) -> None:
    """It is listed as gone, with what waits there, until somebody says otherwise."""
    await fill(api)
    await seen(api, "/overview", lambda told: told["totals"]["waiting"] == 6)
    await api.two.site.stop()
    for listener in api.two.listeners[1:]:
        if listener is not None:
            listener.close()
    nodes = await seen(api, "/nodes", lambda told: "gone" in [row["state"] for row in told["rows"]])
    gone = next(row for row in nodes["rows"] if row["state"] == "gone")
    assert 3 == gone["waiting"]
    notices = (await api.get("/attention"))["notices"]
    assert any("3 messages wait there" in notice["sentence"] for notice in notices)

    assert {"node": api.nodes[1]} == await api.post(f"/nodes/{api.nodes[1]}/forget", {})


async def test_whoever_goes_away_ends_a_search(api: Api) -> None:
    """Nothing goes on for nobody."""
    await fill(api)
    url = f"http://127.0.0.1:{api.admin.http_port}/admin/api/v2/search?topic=t&text=n&stream=true"
    headers = {"Authorization": f"Bearer {api.tokens['all']}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert 200 == answer.status
    assert 2 == (await api.get("/overview"))["totals"]["nodes"]
