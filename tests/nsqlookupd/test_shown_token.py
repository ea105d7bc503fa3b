"""The token that an nsqd sends in IDENTIFY: refusals, topics, and expiry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import tokens
from sparq.daemon.access.access import EXPIRED, FORBIDDEN, UNAUTHORISED, Access
from sparq.nsqlookupd.shown_token import NsqdToken
from tests.support.token_lines import TokenLines

END = tokens.end_of("2030-01-01")


class TokenFile(TokenLines):
    """A token file: tokens for all topics, for some, with an expiry, and without the role."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now = END - 1.0
        self.whole = self.add("whole", "register")
        self.part = self.add("part", "register:t*")
        self.ending = self.add("ending", "register", "2030-01-01")
        self.reader = self.add("reader", "read,publish")
        self.access = Access({}, token_file=str(path), now=lambda: self.now)


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens")


def body(**fields: Any) -> bytes:
    return json.dumps({"version": "1.3.0", **fields}).encode()


def shown(file: TokenFile, token: str) -> NsqdToken:
    """Return the state of an nsqd whose token was accepted."""
    made = NsqdToken(file.access, "192.0.2.1")
    assert "" == made.take(body(token=token))
    return made


@pytest.mark.parametrize("key", ["token", "Token", "TOKEN"])
def test_a_token_with_the_role_is_accepted(file: TokenFile, key: str) -> None:
    """A token with `register` for any topic is accepted; its key may have any case."""
    for token in (file.whole, file.part, file.ending):
        assert "" == NsqdToken(file.access, "192.0.2.1").take(body(**{key: token}))
    assert {UNAUTHORISED: 0, EXPIRED: 0, FORBIDDEN: 0} == file.access.refused


def test_the_error_of_a_refused_token_has_the_reason(file: TokenFile) -> None:
    """A refused token's error states the reason, and refusals are counted by reason."""

    def answer(**fields: Any) -> str:
        return NsqdToken(file.access, "192.0.2.1").take(body(**fields))

    assert "a token is required (nsqd's --lookupd-token)" == answer()
    assert "a token is required (nsqd's --lookupd-token)" == answer(token=7)
    assert "unknown token" == answer(token="x" * 40)
    assert "this token may not register" == answer(token=file.reader)
    file.now = END
    assert "this token has expired" == answer(token=file.ending)
    assert {UNAUTHORISED: 3, EXPIRED: 1, FORBIDDEN: 1} == file.access.refused


def test_a_token_permits_the_topics_of_its_pattern(file: TokenFile) -> None:
    """A token permits the topics of its pattern; without a token no topic is permitted."""
    part = shown(file, file.part)

    assert ["", "this token may not register this topic"] == [part.refusal(t) for t in ("t1", "u")]
    assert "" == shown(file, file.whole).refusal("u")
    assert NsqdToken(file.access, "192.0.2.1").refusal("t1")
    assert 2 == file.access.refused[FORBIDDEN]


def test_a_review_detects_an_expired_token(file: TokenFile) -> None:
    """A review detects that a token has expired, even if the file is not read again."""
    ending, whole = shown(file, file.ending), shown(file, file.whole)
    assert ending.review(again=False)
    file.now = END

    assert not ending.review(again=False)
    assert whole.review(again=False)
    assert NsqdToken(file.access, "192.0.2.1").review(again=False)  # no token sent yet
    assert 1 == file.access.refused[EXPIRED]


def test_a_review_with_again_applies_changes_of_the_file(file: TokenFile) -> None:
    """With ``again``, a review applies changes of the file: removed tokens, roles and topics."""
    part, whole, ending = (shown(file, t) for t in (file.part, file.whole, file.ending))
    file.change("part", "register:u*")
    file.change("whole")
    file.change("ending", "read")

    assert whole.review(again=False)
    assert [True, False, False] == [one.review(again=True) for one in (part, whole, ending)]
    assert ["this token may not register this topic", ""] == [part.refusal(t) for t in ("t1", "u")]
