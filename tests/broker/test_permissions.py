"""An authd's answer: how it is read, what it allows, and for how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparq.broker.permissions import REMEMBERED_MAX, TTL_MAX, AnswerError, read
from tests.broker.house import SECOND_NS, House


def said(**changes: Any) -> bytes:
    entry = {"topic": "^t", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    return json.dumps({"ttl": 60, "authorizations": [entry], **changes}).encode()


def test_what_an_answer_allows() -> None:
    """Topics by pattern; what was asked before is answered the same."""
    permissions = read(said(identity="me", identity_url=None))
    for _ in range(2):
        assert permissions.allows("t1")
        assert permissions.allows("t1", "c")
        assert permissions.allows_reading("t1")
        assert not permissions.allows("u")
        assert not permissions.allows_reading("u")
    assert ("me", "", 1) == (permissions.identity, permissions.identity_url, permissions.count)


def test_what_is_remembered_is_bounded() -> None:
    """A client that asks for ever new names costs no memory."""
    permissions = read(said())
    for number in range(REMEMBERED_MAX + 10):
        assert permissions.allows(f"t{number}")
    assert REMEMBERED_MAX == len(permissions._known)


def test_the_time_to_live() -> None:
    """From the moment on that it is told; however long, it can be counted."""
    permissions = read(said())
    permissions.begin(5)
    assert not permissions.has_expired(60 * SECOND_NS)
    assert permissions.has_expired(60 * SECOND_NS + 5)
    forever = read(said(ttl=10**30))
    forever.begin(0)
    assert not forever.has_expired(TTL_MAX * SECOND_NS - 1)


def test_the_reply() -> None:
    """Compact JSON; a text that cannot be UTF-8 is made one that can."""
    reply = read(said(identity="\ud800é")).reply_data()

    assert '{"identity":"?é","identity_url":"","permission_count":1}'.encode() == reply


@pytest.mark.parametrize(
    "changes",
    [{"ttl": 0}, {"ttl": None}, {"ttl": True}, {"identity": 1}, {"authorizations": {}}]
    + [{"authorizations": [one]} for one in (1, {"topic": "("}, {"channels": "x"})]
    + [{"authorizations": [{"permissions": ["all"]}]}],
    ids=repr,
)
def test_what_is_no_answer(changes: dict[str, Any]) -> None:
    """Nothing is guessed."""
    with pytest.raises(AnswerError):
        read(said(**changes))


def test_a_missing_list_allows_nothing() -> None:
    """No authorizations, or null for them, are none."""
    for answer in (b'{"ttl":1}', said(authorizations=None)):
        assert 0 == read(answer).count


def test_a_refusal_is_the_last_word() -> None:
    """Behind it nothing is executed; what was asked before is answered."""
    house = House(auth_required=True)
    client = house.connect()
    house.broker.authorize(client.session, read(said()))
    client.say(b"PUB t\n\0\0\0\1xPUB u\n\0\0\0\1xPUB t\n\0\0\0\1x")

    reply, *answers = client.answers()
    assert 1 == json.loads(reply)["permission_count"]
    assert [b"OK", b'E_UNAUTHORIZED AUTH failed for PUB on "u" ""'] == answers
    assert client.session.closing
    assert 1 == house.topic("t").message_count
