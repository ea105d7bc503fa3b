"""Messages in the API, validated against its document: viewing, search, dead letters."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from sparq.nsqadmin import messages as peek
from sparq.nsqadmin.messages import SearchPage
from sparq.nsqadmin.v2 import routes as messages
from sparq.protocol.dead_letters import DeadLetterHistory
from tests.nsqadmin.nsqds import fill
from tests.nsqadmin.v2.conftest import Api
from tests.support.waiting import stays, until


async def test_messages_of_all_nodes_are_shown(api: Api) -> None:
    """Lists, log, search, single messages, bodies, times and seek previews cover all nodes."""
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
    """A streamed search sends events with messages and progress, then an `end` event."""
    await fill(api, 10)

    status, received, answer = await api.send(
        "GET", "/search", topic="t", text="n", stream="true", limit=1000
    )

    assert (200, "text/event-stream") == (status, answer.content_type)
    events = [
        dict(line.split(": ", 1) for line in each.split("\n"))
        for each in received.decode().split("\n\n")
        if each
    ]
    assert "end" == events[-1]["event"]
    assert json.loads(events[-1]["data"])["done"]
    steps = [json.loads(each["data"]) for each in events[:-1]]
    assert 10 == sum(len(step["messages"]) for step in steps)
    assert steps[-1]["progress"] == 1.0


async def test_bodies_need_the_role_bodies(api: Api) -> None:
    """Without the role bodies, lists and exports omit bodies, and requests for them get 403."""
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
        _, received, _ = await api.send(
            "GET", "/export", token=token, what="messages", format="jsonl", **asked
        )
        assert 6 == len(received.splitlines())
        assert b"body" not in received
    status, _, _ = await api.send("GET", "/overview", token="")
    assert status in (401, 403)


async def test_a_search_ends_when_its_client_leaves(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its client leaves, a streamed search queries no node any more, and its task ends."""
    await fill(api)
    search = peek.search
    steps: list[asyncio.Task[Any] | None] = []

    async def endless(*args: Any, **options: Any) -> SearchPage:
        """A step of a search that always has a next step."""
        steps.append(asyncio.current_task())
        page = await search(*args, **{**options, "after": ""})
        return structs.replace(page, messages=[], next="more")

    monkeypatch.setattr(peek, "search", endless)
    url = f"http://127.0.0.1:{api.admin.http_port}/admin/api/v2/search?topic=t&text=n&stream=true"
    headers = {"Authorization": f"Bearer {api.tokens['all']}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert 200 == answer.status
        await until(lambda: len(steps) > 3)
    (task,) = set(steps)
    assert task is not None
    await until(task.done)
    count = len(steps)
    await stays(lambda: count == len(steps))
    assert 2 == (await api.get("/overview"))["totals"]["nodes"]


async def publish_dead_letters(api: Api, *bodies: str) -> None:
    """Publish dead letters alternately at both nodes."""
    for number, body in enumerate(bodies):
        await (api.one, api.two)[number % 2].post("/pub?topic=t.dead", body.encode())


async def test_letters_return_to_the_channel_that_they_came_from(api: Api) -> None:
    """Without `to`, letters are redriven: no other channel of their topic gets them."""
    history = DeadLetterHistory("t", "c", "1" * 16, 3, 1, 1, "a consumer", "requeued")
    await api.one.post("/topic/create?topic=t.dead")
    for topic, channel in (("t", "other"), ("t.dead", "x"), ("t.dead", "redrive")):
        await api.one.post(f"/channel/create?topic={topic}&channel={channel}")
    await api.one.post("/pub?topic=t.dead", history.seal(b"poison"))
    (letter,) = (await api.get("/dead-letters", topic="t.dead"))["messages"]

    body = {"topic": "t.dead", "messages": [f"{letter['node']}/{letter['id']}"]}
    done = await api.post("/dead-letters", body)

    assert {"to": "", "sent": 1, "refused": {}, "errors": {}, "more": False} == done
    totals = [
        (await api.get("/messages", topic=topic, channel=channel))["total"]
        for topic, channel in (("t", "c"), ("t", "other"), ("t.dead", "redrive"), ("t.dead", "x"))
    ]
    assert [1, 0, 0, 1] == totals


async def test_dead_letters_are_copied_and_marked(api: Api) -> None:
    """A chosen dead letter is copied to the named topic; `came_back` counts returns."""
    await publish_dead_letters(api, "a", "b", "c")
    page = await api.get("/dead-letters", topic="t.dead")
    assert ("t", ["a", "b", "c"]) == (page["origin"], [m["body"] for m in page["messages"]])
    assert [("", 0)] * 3 == [(m["sent_at"], m["came_back"]) for m in page["marks"].values()]
    keys = [f"{m['node']}/{m['id']}" for m in page["messages"]]

    done = await api.post("/dead-letters", {"topic": "t.dead", "to": "t", "messages": [keys[1]]})

    assert {"to": "t", "sent": 1, "refused": {}, "errors": {}, "more": False} == done
    waiting = await api.get("/messages", topic="t", channel="c")
    assert ["b"] == [m["body"] for m in waiting["messages"]]
    await publish_dead_letters(api, "b")
    again = await api.get("/dead-letters", topic="t.dead")
    marks = [again["marks"][f"{m['node']}/{m['id']}"] for m in again["messages"]]
    assert [False, True, False, False] == [bool(mark["sent_at"]) for mark in marks]
    assert [0, 0, 0, 1] == [mark["came_back"] for mark in marks]
    assert marks[1]["sent_at"] == marks[3]["last_sent_at"]


async def test_all_dead_letters_are_copied_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """`all` sends, in batches, each dead letter that was not sent back before."""
    monkeypatch.setattr(messages, "BATCH", 4)
    await publish_dead_letters(api, *(f"letter {number}" for number in range(11)))
    page = await api.get("/dead-letters", topic="t.dead", limit=1)
    first = page["messages"][0]
    one = {"topic": "t.dead", "to": "t", "messages": [f"{first['node']}/{first['id']}"]}
    assert 1 == (await api.post("/dead-letters", one))["sent"]

    done = await api.post("/dead-letters", {"topic": "t.dead", "to": "t", "all": True})
    none = await api.post("/dead-letters", {"topic": "t.dead", "to": "t", "all": True})

    assert ((10, False), 0) == ((done["sent"], done["more"]), none["sent"])
    waiting = await api.get("/messages", topic="t", channel="c")
    assert {f"letter {n}" for n in range(11)} == {m["body"] for m in waiting["messages"]}
    assert 11 == waiting["total"]
    audit = await api.get("/audit", action="copy_message", topic="t.dead")
    assert all(len(entry["arguments"]["ids"]) for entry in audit["entries"])


async def test_invalid_requests_send_nothing(api: Api) -> None:
    """Without messages or the role, nothing is sent."""
    await publish_dead_letters(api, "a")
    for body, words in (
        ({"topic": "t.dead"}, "INVALID_BODY: set `messages` or `all`"),
        ({"topic": "t.dead", "messages": ["x"]}, "INVALID_BODY: name each message"),
    ):
        received = await api.post("/dead-letters", body, status=400)
        assert received["message"].startswith(words)
    every = {"topic": "t.dead", "all": True}
    assert "FORBIDDEN" == (await api.post("/dead-letters", every, 403, token="read"))["message"]
    assert 0 == (await api.get("/messages", topic="t", channel="c"))["total"]
