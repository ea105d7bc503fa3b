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
from sparq.nsqd.shown_token import LOOK_SECONDS, ConnectionToken
from sparq.protocol.commands import STATE_SUBSCRIBED
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant
from tests.support.token_lines import TokenLines

END = tokens.end_of("2030-01-01")


class Timer:
    """A `call_later` that the test fires."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.fire, self.is_cancelled = seconds, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Bench(TokenLines):
    """One connection with a scripted loop and broker, and a token file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now = END - 1000.0
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
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "tokens")


def test_roles_become_permissions(bench: Bench) -> None:
    """A token's roles allow publishing and consuming for topics that match the pattern."""
    found = bench.take(bench.both)

    assert "both" == found.identity
    assert [True, False] == [found.allows(topic, "c") for topic in ("t1", "u")]


@pytest.mark.parametrize(
    ("secret", "reason"), [("x" * 40, UNAUTHORISED), ("", UNAUTHORISED), ("ending", EXPIRED)]
)
def test_a_secret_that_is_no_valid_token(bench: Bench, secret: str, reason: str) -> None:
    """It gets no permissions, for the reason UNAUTHORISED, or EXPIRED if it is expired."""
    bench.now = END
    secret = bench.ending if secret == "ending" else secret

    assert (None, reason) == bench.token.take(secret.encode())
    assert [] == bench.timers


def test_a_token_that_expires_ends_the_connection(bench: Bench) -> None:
    """The expiry is checked every LOOK_SECONDS, as the clock may change, and when it is due."""
    bench.take(bench.ending)
    assert [LOOK_SECONDS] == [timer.seconds for timer in bench.timers]
    bench.now = END - 5.0
    bench.timers[-1].fire()
    assert [] == bench.errors
    assert 5.0 == bench.timers[-1].seconds
    bench.now = END
    bench.timers[-1].fire()

    assert [("E_AUTH_FAILED", "AUTH failed")] == bench.failures()
    assert 1 == bench.access.refused[EXPIRED]


def test_a_token_without_an_end_needs_no_timer(bench: Bench) -> None:
    """A token without expiry ends only when it is removed from the file."""
    bench.take(bench.both)
    assert [] == bench.timers
    bench.change("both")
    bench.token.review()

    assert [("E_AUTH_FAILED", "AUTH failed")] == bench.failures()
    assert 1 == bench.access.refused[UNAUTHORISED]


def test_other_roles_apply_from_the_next_command_on(bench: Bench) -> None:
    """The connection stays open, unless its subscription is no longer allowed."""
    bench.take(bench.both)
    bench.change("both", "publish:u*")
    bench.token.review()
    assert [] == bench.errors
    permissions: Any = bench.session.permissions
    assert not permissions.allows("t1", "c")

    bench.session.state = STATE_SUBSCRIBED
    bench.token.review()
    text = 'AUTH failed for SUB on "t1" "c"'
    assert [("E_UNAUTHORIZED", text)] == bench.failures()
    assert 1 == bench.access.refused[FORBIDDEN]


def test_a_connection_that_is_closing_is_left_alone(bench: Bench) -> None:
    """No error is sent to a closing connection, or to one without a token."""
    bench.token.review()
    bench.take(bench.ending)
    bench.session.closing = True
    bench.now = END
    bench.token.review()
    assert [] == bench.errors

    bench.token.close()
    assert bench.timers[-1].is_cancelled


def test_the_reason_of_a_refusal_follows_from_the_error(bench: Bench) -> None:
    """The default reason is FORBIDDEN for E_UNAUTHORIZED, else UNAUTHORISED."""
    bench.token.refuse("E_UNAUTHORIZED", "PUB", topic="t1")
    bench.token.refuse("E_AUTH_FIRST", "SUB")
    bench.token.refuse("E_AUTH_FAILED", "AUTH", EXPIRED)

    assert {UNAUTHORISED: 1, EXPIRED: 1, FORBIDDEN: 1} == bench.access.refused
