"""HTTP actions on single messages: requeue, finish, cancel, copy and redrive, after kill -9 too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparq.nsqd.turns import instant
from sparq.protocol.commands import fin, rdy, req, sub
from sparq.protocol.dead_letters import DeadLetterHistory
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.nsqd.test_inspection import bodies, channel, get, target
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until


async def ids(nsqd: Daemon, topic: str = "t") -> list[str]:
    """The ids of a topic's messages."""
    page = await get(nsqd, "/topic/messages", topic=topic)
    return [message["id"] for message in page["messages"]]


async def act(nsqd: Daemon, action: str, chosen: list[str], **query: Any) -> dict[str, Any]:
    """Send an action for these ids; return its JSON answer."""
    body = json.dumps({"ids": chosen}).encode()
    answer: dict[str, Any] = json.loads(
        await nsqd.post(target(f"/message/{action}", {"topic": "t"} | query), body)
    )
    return answer


async def test_messages_are_finished_and_requeued(nsqd: Daemon) -> None:
    """An action takes a list of ids or one; the answer lists refused ids with the reason."""
    await channel(nsqd, b"a", b"b", b"c")
    a, b, c = await ids(nsqd)
    other = "f" * 16
    done = await act(nsqd, "finish", [c, a, other, a], channel="c")
    assert done == {"done": [c, a], "refused": [{"id": other, "why": "it belongs to another node"}]}
    assert bodies(await get(nsqd, "/channel/messages", topic="t", channel="c")) == ["b"]

    answer = json.loads(await nsqd.post(f"/message/requeue?topic=t&channel=c&id={c}"))
    assert answer == {"done": [c], "refused": []}
    again = await act(nsqd, "cancel", [b], channel="c")
    assert again == {"done": [], "refused": [{"id": b, "why": "it is not deferred"}]}
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert sorted(await consumer.messages(2)) == [b"b", b"c"]
    await consumer.close()


async def test_actions_apply_to_messages_in_flight(nsqd: Daemon) -> None:
    """A message finished over HTTP gets E_FIN_FAILED for its FIN; requeued, it is delivered."""
    await channel(nsqd, b"a")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await consumer.messages(1, finish=False)
    (a,) = await ids(nsqd)
    await act(nsqd, "finish", [a], channel="c")
    consumer.send(fin(a.encode()))
    assert (await consumer.frame())[1] == f"E_FIN_FAILED FIN {a} failed ID not in flight".encode()
    consumer.send(rdy(1))
    await act(nsqd, "requeue", [a], channel="c")
    kind, data = await consumer.frame()
    assert (kind, data[-1:]) == (2, b"a")
    await consumer.close()


async def test_messages_are_copied(nsqd: Daemon) -> None:
    """Copies are new messages, in the requested order; the originals are unchanged."""
    await channel(nsqd, b"a", b"b", b"c")
    a, b, _ = await ids(nsqd)
    gone = f"{int(b, 16) + 99:016x}"
    answer = await act(nsqd, "copy", [b, gone, a], to="dead", channel="c")
    assert answer == {
        "done": [b, a],
        "refused": [{"id": gone, "why": "not in the log"}],
    }
    assert bodies(await get(nsqd, "/topic/messages", topic="dead")) == ["b", "a"]
    assert not {a, b} & set(await ids(nsqd, "dead"))
    assert (await nsqd.channel("t", "c"))["depth"] == 3
    assert await act(nsqd, "copy", [a], to="t") == {"done": [a], "refused": []}
    assert (await nsqd.channel("t", "c"))["depth"] == 4


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/message/finish?topic=t&channel=c", b"", 400, "MISSING_ARG_ID"),
        ("/message/finish?topic=t&channel=c&id=7", b"", 400, "INVALID_ARG_ID"),
        ("/message/finish?topic=t&channel=c", b" " * 65_537, 413, "BODY_TOO_BIG"),
        ("/message/finish?topic=t", b"", 400, "MISSING_ARG_CHANNEL"),
        ("/message/requeue?topic=t", b"", 400, "MISSING_ARG_CHANNEL"),
        ("/message/finish?channel=c", b"", 400, "MISSING_ARG_TOPIC"),
        ("/message/copy?topic=t", b"", 400, "MISSING_ARG_TO"),
        ("/message/copy?topic=t&to=no%20name", b"", 400, "INVALID_ARG_TO"),
        ("/message/copy?topic=u&to=v", b'{"ids":[]}', 404, "TOPIC_NOT_FOUND"),
        ("/message/copy?topic=t&to=v&channel=d", b'{"ids":[]}', 404, "CHANNEL_NOT_FOUND"),
        ("/message/finish?topic=u&channel=c", b'{"ids":[]}', 404, "TOPIC_NOT_FOUND"),
        ("/message/cancel?topic=t&channel=d", b'{"ids":[]}', 404, "CHANNEL_NOT_FOUND"),
    ],
)
async def test_invalid_requests_name_the_parameter(
    nsqd: Daemon, path: str, body: bytes, status: int, code: str
) -> None:
    """A bad request gets NSQ's error code, or one with the parameter's name."""
    await channel(nsqd)
    answered, answer = await nsqd.ask("POST", path, body)
    assert (answered, json.loads(answer)["message"].partition(":")[0]) == (status, code)


def test_actions_survive_kill_9(tmp_path: Path) -> None:
    """Finishes, requeues and cancellations that were answered are in effect after kill -9."""

    def listed(nsqd: NsqdServer, channel: str, state: str) -> list[str]:
        page = nsqd.get_json(f"/channel/messages?topic=t&channel={channel}&state={state}")
        return [message["body"] for message in page["messages"]]

    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        for channel in ("c", "other"):
            nsqd.post(f"/channel/create?topic=t&channel={channel}")
        nsqd.post("/mpub?topic=t", b"a\nb\nc")
        nsqd.post("/mpub?topic=t&defer=3000000", b"d\ne\nf\ng")
        log = nsqd.get_json("/topic/messages?topic=t")["messages"]
        _, b, c, d, e, f, _ = (message["id"] for message in log)
        for action, message, where in (
            ("finish", b, "&channel=c"),
            ("finish", c, "&channel=c"),
            ("requeue", c, "&channel=c"),
            ("requeue", d, "&channel=c"),
            ("cancel", e, "&channel=c"),
            ("cancel", f, ""),
        ):
            answer = json.loads(nsqd.post(f"/message/{action}?topic=t{where}&id={message}"))
            assert answer == {"done": [message], "refused": []}
        nsqd.kill9()
        nsqd.start()
        assert listed(nsqd, "c", "waiting") == ["a", "c", "d"]
        assert listed(nsqd, "c", "deferred") == ["g"]
        assert listed(nsqd, "other", "deferred") == ["d", "e", "g"]


async def test_a_dead_letter_claimed_by_another_redrive_is_refused(nsqd: Daemon) -> None:
    """A dead letter that another redrive has claimed is refused, and stays in flight there."""
    await nsqd.post("/pub?topic=t.dead", b"x")
    await nsqd.post("/channel/create?topic=t.dead&channel=c")
    (one,) = await ids(nsqd, "t.dead")
    broker = nsqd.nsqd.broker
    indexes = np.array([broker.topics["t.dead"].stream.log.first_index], np.int64)
    assert {} == broker.claim("t.dead", "c", indexes, instant())
    answer = json.loads(await nsqd.post(f"/message/redrive?topic=t.dead&channel=c&id={one}"))
    assert answer["refused"] == [{"id": one, "why": "it is in flight"}]
    found = await nsqd.channel("t.dead", "c")
    assert (found["depth"], found["in_flight_count"]) == (0, 1)


async def test_a_dead_letter_is_copied(tmp_path: Path) -> None:
    """The copy is the original message; in another dead-letter topic it keeps its history."""
    history = DeadLetterHistory("t", "c", "0" * 16, 3, 10**18, 0, "me", "requeued")
    nsqd = await start(tmp_path)
    await nsqd.post("/pub?topic=t.dead", history.seal(b"bad"))
    chosen = await ids(nsqd, "t.dead")
    for to, expected in (("t", b"bad"), ("other.dead", history.seal(b"bad"))):
        assert (await act(nsqd, "copy", chosen, topic="t.dead", to=to))["done"] == chosen
        (one,) = await ids(nsqd, to)
        query = {"topic": to, "id": one, "raw": "true", "envelope": "true"}
        assert await nsqd.ask("GET", target("/message", query)) == (200, expected)
    await stop(nsqd)


async def test_a_dead_letter_above_max_msg_size_is_redriven(tmp_path: Path) -> None:
    """With its history a dead letter may exceed max_msg_size; it is redriven with its body."""
    nsqd = await start(tmp_path, max_msg_size=1_000, max_body_size=1_000, max_attempts=1)
    body = b"x" * 1_000
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.post("/topic/create?topic=t.dead")
    await nsqd.post("/channel/create?topic=t.dead&channel=back")
    await nsqd.post("/pub?topic=t", body)
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    consumer.send(rdy(1))
    (first,) = await ids(nsqd)
    assert (await consumer.frame())[0] == 2
    consumer.send(req(first.encode(), 0))
    letters = nsqd.nsqd.broker.topics["t.dead"].channels["back"]
    await until(lambda: letters.depth() == 1)
    await consumer.close()
    (one,) = await ids(nsqd, "t.dead")
    await nsqd.post(f"/message/redrive?topic=t.dead&channel=back&id={one}")
    back = (await ids(nsqd))[-1]
    for topic, name in (("t", back), ("t.dead", one)):
        query = {"topic": topic, "id": name, "raw": "true"}
        assert await nsqd.ask("GET", target("/message", query)) == (200, body)
    await stop(nsqd)
