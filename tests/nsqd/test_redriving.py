"""Dead letters of a real nsqd: their history, how they are shown, and redriving."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import mpub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, Message, V2Client, fin_each
from tests.support.waiting import wait_for

MOST = 3
COUNT = 100_000
EVERY = 100
WAIT_SECONDS = 60
QUIET_SECONDS = 0.1
BATCH = 2_000


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdServer]:
    """An nsqd that moves messages to the dead-letter topic after three attempts."""
    with spawn_nsqd(tmp_path, f"--max-attempts={MOST}") as server:
        yield server


def get(nsqd: NsqdServer, path: str) -> Any:
    status, body = nsqd.request("GET", path)
    assert status == 200, body
    return json.loads(body)


def redrive(nsqd: NsqdServer, query: str, ids: list[str] | None = None) -> Any:
    body = b"" if ids is None else json.dumps({"ids": ids}).encode()
    status, answer = nsqd.request("POST", f"/message/redrive?{query}", body)
    assert status == 200, answer
    return json.loads(answer)


def req(*messages: Message) -> bytes:
    return b"".join(b"REQ %s 0\n" % message.id for message in messages)


def fails(body: bytes) -> bool:
    return int(body) % EVERY == 0


def consume(nsqd: NsqdServer, until: int, *, failing: bool) -> Counter[bytes]:
    """Consume `t` until `until` messages are finished; if `failing`, requeue every 100th."""
    finished: Counter[bytes] = Counter()
    with V2Client(nsqd) as client:
        assert client.ask(sub("t", "c")) == OK
        client.send(rdy(2_500))

        def is_done() -> bool:
            messages = client.messages_within(QUIET_SECONDS)
            bad = [message for message in messages if failing and fails(message.body)]
            good = [message for message in messages if not (failing and fails(message.body))]
            client.send(fin_each(good) + req(*bad))
            finished.update(message.body for message in good)
            if messages or finished.total() < until:
                return False
            figures = nsqd.channel("t", "c")
            return not (figures["depth"] or figures["in_flight_count"])

        wait_for(is_done, WAIT_SECONDS, finished.total)
    assert finished.total() == until
    return finished


def all_dead_letters(nsqd: NsqdServer) -> list[dict[str, Any]]:
    """All messages of the dead-letter topic."""
    found: list[dict[str, Any]] = []
    place = "earliest"
    while page := get(nsqd, f"/topic/messages?topic=t.dead&limit=1000&from={place}")["messages"]:
        found += page
        place = str(int(page[-1]["index"]) + 1)
    return found


def test_each_failed_message_is_redriven_exactly_once(nsqd: NsqdServer) -> None:
    """Exactly 1,000 of 100,000 messages become dead letters; each is redriven exactly once."""
    wanted = {str(number) for number in range(0, COUNT, EVERY)}
    nsqd.request("POST", "/topic/create?topic=t")
    nsqd.request("POST", "/channel/create?topic=t&channel=c")
    nsqd.request("POST", "/channel/create?topic=t&channel=other")
    with V2Client(nsqd) as client:
        for first in range(0, COUNT, BATCH):
            bodies = [b"%d" % number for number in range(first, first + BATCH)]
            assert client.ask(mpub("t", bodies)) == OK
    finished = consume(nsqd, COUNT - len(wanted), failing=True)
    assert set(finished.values()) == {1}
    wait_for(lambda: nsqd.channel("t", "c")["dead_letter_count"] == len(wanted))

    found = all_dead_letters(nsqd)
    assert sorted(wanted) == sorted(message["body"] for message in found)
    for message in found:
        letter = message["letter"]
        facts = letter["topic"], letter["channel"], letter["attempts"], letter["reason"]
        assert facts == ("t", "c", str(MOST), "requeued")
        assert letter["consumer"].endswith(")")
        assert letter["published"] < letter["last_returned"]
    assert len({message["letter"]["id"] for message in found}) == len(wanted)

    done = 0
    while answer := redrive(nsqd, "topic=t.dead&channel=redrive&count=300"):
        assert answer["refused"] == []
        done += len(answer["done"])
        if not answer["waiting"]:
            break
    assert done == len(wanted)
    again = consume(nsqd, len(wanted), failing=False)
    assert again == Counter({body.encode(): 1 for body in wanted})
    assert nsqd.channel("t", "other")["depth"] == COUNT
    assert nsqd.channel("t.dead", "redrive")["redriven_count"] == len(wanted)
    _, metrics = nsqd.request("GET", "/metrics")
    line_of = f'nsqd_channel_redriven_total{{topic="t.dead",channel="redrive"}} {len(wanted)}'
    assert line_of in metrics.decode()


def make_dead_letters(nsqd: NsqdServer, *bodies: bytes, channel: str = "c") -> list[str]:
    """Publish messages to `t` and make them dead letters; return the ids of the dead letters."""
    nsqd.request("POST", "/topic/create?topic=t.dead")
    nsqd.request("POST", "/channel/create?topic=t.dead&channel=back")
    before = nsqd.channel("t.dead", "back")["depth"]
    with V2Client(nsqd) as client:
        assert client.ask(sub("t", channel)) == OK
        for body in bodies:
            nsqd.request("POST", "/pub?topic=t", body)
        client.send(rdy(100))
        for _ in range(MOST):
            client.send(req(*client.messages(len(bodies))))
        wait_for(lambda: nsqd.channel("t.dead", "back")["depth"] == before + len(bodies))
    page = get(nsqd, "/channel/messages?topic=t.dead&channel=back")["messages"]
    return [message["id"] for message in page[-len(bodies) :]]


def test_a_dead_letter_is_shown_by_its_body(nsqd: NsqdServer) -> None:
    """A dead letter is shown and searched by its body; `envelope` shows the stored bytes."""
    (one,) = make_dead_letters(nsqd, b'{"a": 1}')
    message = get(nsqd, f"/message?topic=t.dead&id={one}&body_bytes=3")
    assert (message["body"], message["cut"], message["size"]) == ('{"a', True, 8)
    assert message["letter"]["channel"] == "c"
    hidden = get(nsqd, f"/message?topic=t.dead&id={one}&bodies=false")
    assert ("body" not in hidden, hidden["letter"]["attempts"]) == (True, str(MOST))
    _, raw = nsqd.request("GET", f"/message?topic=t.dead&id={one}&raw=true")
    assert raw == b'{"a": 1}'
    _, sealed = nsqd.request("GET", f"/message?topic=t.dead&id={one}&raw=true&envelope=true")
    assert sealed.startswith(b"\0sparq\x01")
    assert sealed.endswith(raw)
    for criterion in ("json=a==1", "regex=^.%22a", "text=requeued"):
        found = get(nsqd, f"/topic/search?topic=t.dead&{criterion}")["messages"]
        assert [one] == [each["id"] for each in found], criterion
        assert found[0]["body"] == '{"a": 1}'


def test_refused_dead_letters_have_the_reason(nsqd: NsqdServer) -> None:
    """A refused dead letter is listed with the reason, and still waits in its channel."""
    one, two = make_dead_letters(nsqd, b"1", b"2")
    nsqd.request("POST", "/pub?topic=t.dead", b"by hand")
    ids = [m["id"] for m in get(nsqd, "/channel/messages?topic=t.dead&channel=back")["messages"]]
    nsqd.request("POST", "/channel/delete?topic=t&channel=c")
    answer = redrive(nsqd, "topic=t.dead&channel=back", ids)
    why = {refusal["id"]: refusal["why"] for refusal in answer["refused"]}
    gone = "channel c of topic t does not exist: create it, or use to_all"
    assert (answer["done"], why.pop(one), why.pop(two)) == ([], gone, gone)
    assert list(why.values()) == ["not a dead letter (no history): use /message/copy"]
    assert answer["waiting"] == 3

    nsqd.request("POST", "/channel/create?topic=t&channel=d")
    assert redrive(nsqd, "topic=t.dead&channel=back&to_all=true", [one])["done"] == [one]
    assert nsqd.channel("t", "d")["depth"] == 1
    nsqd.request("POST", "/channel/create?topic=t&channel=c")
    nsqd.request("POST", "/topic/pause?topic=t")
    (refusal,) = redrive(nsqd, "topic=t.dead&channel=back", [two])["refused"]
    assert refusal["why"].startswith("topic t is paused")
    nsqd.request("POST", "/topic/delete?topic=t")
    (refusal,) = redrive(nsqd, "topic=t.dead&channel=back", [two])["refused"]
    assert refusal["why"] == "topic t does not exist"
    for query, status in (
        ("topic=t.dead", 400),
        ("topic=t.dead&channel=none", 404),
        ("topic=none&channel=c", 404),
        ("topic=t.dead&channel=back&count=0", 400),
        ("topic=t.dead&channel=back", 400),
    ):
        assert nsqd.request("POST", f"/message/redrive?{query}")[0] == status
