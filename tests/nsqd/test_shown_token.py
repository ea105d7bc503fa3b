"""The token of a V2 connection: its permissions, and when they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparq.broker.permissions import Permissions
from sparq.daemon.access import tokens
from sparq.daemon.access.access import EXPIRED, FORBIDDEN, UNAUTHORISED, Access
from sparq.nsqd.shown_token import CHECK_SECONDS, ConnectionToken
from sparq.protocol.commands import STATE_SUBSCRIBED
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant
from tests.support.token_lines import TokenLines

EXPIRY = tokens.end_of("2030-01-01")


class Timer:
    """A `call_later` that the test fires."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.fire, self.is_cancelled = seconds, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeConnection(TokenLines):
    """One connection with a scripted loop and broker, and a token file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now = EXPIRY - 1000.0
        self.timers: list[Timer] = []
        self.errors: list[RemoteError] = []
        self.both = self.add("both", "publish:t*,consume:t*")
        self.ending = self.add("ending", "consume", "2030-01-01")
        self.access = Access({}, token_file=str(path), now=lambda: self.now)
        self.session = SimpleNamespace(
            closing=False,
            state=0,
            permissions=None,
            remote_address="192.0.2.1",
            user_agent="go-nsq",
        )
        turns = SimpleNamespace(
            loop=SimpleNamespace(call_later=self._call_later),
            runner=SimpleNamespace(now=lambda: Instant(0, 0)),
            broker=SimpleNamespace(
                fail=lambda _session, error: self.errors.append(error),
                names_subscribed=lambda _session: ("t1", "c"),
            ),
            schedule=lambda: None,
        )
        scripted: Any = turns, self.session
        self.token = ConnectionToken(self.access, *scripted)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def take(self, secret: str) -> Permissions:
        found, reason = self.token.take(secret.encode())
        assert "" == reason
        assert found is not None
        self.session.permissions = found
        return found

    def failures(self) -> list[tuple[str, str]]:
        return [(error.code, error.text) for error in self.errors]


@pytest.fixture
def connection(tmp_path: Path) -> FakeConnection:
    return FakeConnection(tmp_path / "tokens")


def test_roles_become_permissions(connection: FakeConnection) -> None:
    """A token's roles allow publishing and consuming for topics that match the pattern."""
    found = connection.take(connection.both)

    assert "both" == found.identity
    assert [True, False] == [found.allows(topic, "c") for topic in ("t1", "u")]


@pytest.mark.parametrize(
    ("secret", "reason"), [("x" * 40, UNAUTHORISED), ("", UNAUTHORISED), ("ending", EXPIRED)]
)
def test_an_invalid_token_gets_no_permissions(
    connection: FakeConnection, secret: str, reason: str
) -> None:
    """It gets no permissions, for the reason UNAUTHORISED, or EXPIRED if it is expired."""
    connection.now = EXPIRY
    secret = connection.ending if secret == "ending" else secret

    assert (None, reason) == connection.token.take(secret.encode())
    assert [] == connection.timers


def test_an_expired_token_ends_the_connection(connection: FakeConnection) -> None:
    """The expiry is checked every CHECK_SECONDS, as the clock may change, and when it is due."""
    connection.take(connection.ending)
    assert [CHECK_SECONDS] == [timer.seconds for timer in connection.timers]
    connection.now = EXPIRY - 5.0
    connection.timers[-1].fire()
    assert [] == connection.errors
    assert 5.0 == connection.timers[-1].seconds
    connection.now = EXPIRY
    connection.timers[-1].fire()

    assert [("E_AUTH_FAILED", "AUTH failed")] == connection.failures()
    assert 1 == connection.access.refused[EXPIRED]


def test_a_token_without_expiry_needs_no_timer(connection: FakeConnection) -> None:
    """A token without expiry ends only when it is removed from the file."""
    connection.take(connection.both)
    assert [] == connection.timers
    connection.change("both")
    connection.token.review()

    assert [("E_AUTH_FAILED", "AUTH failed")] == connection.failures()
    assert 1 == connection.access.refused[UNAUTHORISED]


def test_changed_roles_apply_to_the_next_command(connection: FakeConnection) -> None:
    """The connection stays open, unless its subscription is no longer allowed."""
    connection.take(connection.both)
    connection.change("both", "publish:u*")
    connection.token.review()
    assert [] == connection.errors
    permissions: Any = connection.session.permissions
    assert not permissions.allows("t1", "c")

    connection.session.state = STATE_SUBSCRIBED
    connection.token.review()
    text = 'AUTH failed for SUB on "t1" "c"'
    assert [("E_UNAUTHORIZED", text)] == connection.failures()
    assert 1 == connection.access.refused[FORBIDDEN]


def test_a_closing_connection_gets_no_error(connection: FakeConnection) -> None:
    """No error is sent to a closing connection, or to one without a token."""
    connection.token.review()
    connection.take(connection.ending)
    connection.session.closing = True
    connection.now = EXPIRY
    connection.token.review()
    assert [] == connection.errors

    connection.token.close()
    assert connection.timers[-1].is_cancelled


def test_the_reason_of_a_refusal_follows_from_the_error(connection: FakeConnection) -> None:
    """The default reason is FORBIDDEN for E_UNAUTHORIZED, else UNAUTHORISED."""
    connection.token.refuse("E_UNAUTHORIZED", "PUB", topic="t1")
    connection.token.refuse("E_AUTH_FIRST", "SUB")
    connection.token.refuse("E_AUTH_FAILED", "AUTH", EXPIRED)

    assert {UNAUTHORISED: 1, EXPIRED: 1, FORBIDDEN: 1} == connection.access.refused
