"""Dead letters are listed and sent back; those that come back are marked."""

from __future__ import annotations

import pytest

from sparq.nsqadmin.messages.dead_letters import origin, sent_in
from sparq.nsqadmin.v2 import messages
from tests.nsqadmin.v2.conftest import Api


async def bury(api: Api, *bodies: str) -> None:
    """Publish dead letters in turns at both nodes."""
    for number, body in enumerate(bodies):
        await (api.one, api.two)[number % 2].post("/pub?topic=t.dead", body.encode())


async def test_letters_are_sent_back_and_marked(api: Api) -> None:
    """The chosen one is published to the topic that it came from, and may come back."""
    await bury(api, "a", "b", "c")
    page = await api.get("/dead-letters", topic="t.dead")
    assert ("t", ["a", "b", "c"]) == (page["origin"], [m["body"] for m in page["messages"]])
    assert [("", 0)] * 3 == [(m["sent_at"], m["came_back"]) for m in page["marks"].values()]
    keys = [f"{m['node']}/{m['id']}" for m in page["messages"]]

    done = await api.post("/dead-letters", {"topic": "t.dead", "messages": [keys[1]]})

    assert {"to": "t", "sent": 1, "refused": {}, "errors": {}, "more": False} == done
    waiting = await api.get("/messages", topic="t", channel="c")
    assert ["b"] == [m["body"] for m in waiting["messages"]]
    await bury(api, "b")
    again = await api.get("/dead-letters", topic="t.dead")
    marks = [again["marks"][f"{m['node']}/{m['id']}"] for m in again["messages"]]
    assert [False, True, False, False] == [bool(mark["sent_at"]) for mark in marks]
    assert [0, 0, 0, 1] == [mark["came_back"] for mark in marks]
    assert marks[1]["sent_at"] == marks[3]["last_sent_at"]


async def test_all_letters_are_sent_back_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches, without those that were sent back before; others stay out of it."""
    monkeypatch.setattr(messages, "BATCH", 4)
    await bury(api, *(f"letter {number}" for number in range(11)))
    page = await api.get("/dead-letters", topic="t.dead", limit=1)
    first = page["messages"][0]
    one = {"topic": "t.dead", "messages": [f"{first['node']}/{first['id']}"]}
    assert 1 == (await api.post("/dead-letters", one))["sent"]

    done = await api.post("/dead-letters", {"topic": "t.dead", "all": True})
    none = await api.post("/dead-letters", {"topic": "t.dead", "all": True})

    assert ((10, False), 0) == ((done["sent"], done["more"]), none["sent"])
    waiting = await api.get("/messages", topic="t", channel="c")
    assert {f"letter {n}" for n in range(11)} == {m["body"] for m in waiting["messages"]}
    assert 11 == waiting["total"]
    audit = await api.get("/audit", action="copy_message", topic="t.dead")
    assert all(len(entry["arguments"]["ids"]) for entry in audit["entries"])


async def test_wrong_orders_send_nothing(api: Api) -> None:
    """Without messages, a topic to send to, or the role."""
    await bury(api, "a")
    for body, words in (
        ({"topic": "t.dead"}, "INVALID_BODY: set `messages` or `all`"),
        ({"topic": "t", "messages": ["x"]}, "INVALID_BODY: `to` is missing"),
        ({"topic": "t.dead", "messages": ["x"]}, "INVALID_BODY: name each message"),
    ):
        told = await api.post("/dead-letters", body, status=400)
        assert told["message"].startswith(words)
    every = {"topic": "t.dead", "all": True}
    assert "FORBIDDEN" == (await api.post("/dead-letters", every, 403, token="read"))["message"]
    assert 0 == (await api.get("/messages", topic="t", channel="c"))["total"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders.dead", "orders"),
        ("orders-dlq", "orders"),
        ("a_b_dead_letters", "a_b"),
        ("Orders.FAILED#ephemeral", "Orders"),
        ("orders", ""),
        (".dead", ""),
    ],
)
def test_where_letters_come_from(topic: str, expected: str) -> None:
    """By the name of their topic."""
    assert expected == origin(topic)


def test_only_copies_that_were_made_count() -> None:
    """What failed was not sent back; entries that are cut name nothing."""
    ids = {"a:1": ["1"]}
    entries = [
        {"outcome": "failed", "arguments": {"ids": {"a:1": ["0"]}}, "time": "3"},
        {"outcome": "done", "arguments": {"ids": ids}, "time": "2"},
        {"outcome": "done", "arguments": {"ids": ids}, "time": "1"},
        {"outcome": "done", "arguments": "{cut..."},
    ]
    assert {"a:1/1": "2"} == sent_in(entries)
