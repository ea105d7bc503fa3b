"""nsqd's V2 clients: the limit on their number, and disconnecting them when nsqd stops."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from sparq.nsqd import clients as module
from sparq.nsqd.auth import Authenticator
from sparq.nsqd.clients import Clients
from sparq.nsqd.options import NsqdOptions
from tests.support.options import changed


class Connection:
    """A fake connection that counts calls, and leaves once it is closed or aborted."""

    def __init__(self, clients: Clients, *, reads_in: float | None = 0.0) -> None:
        """`reads_in`: seconds it takes to read everything; None: it never reads."""
        self.closed = self.aborted = 0
        self._clients, self._reads_in = clients, reads_in

    def close(self) -> None:
        self.closed += 1
        if self._reads_in:
            asyncio.get_running_loop().call_later(self._reads_in, self._leave)
        elif self._reads_in is not None:
            self._leave()

    def abort(self) -> None:
        self.aborted += 1
        self._leave()

    def _leave(self) -> None:
        self._clients.forget(self)  # type: ignore[arg-type]  # it has the methods that are used


def clients_with(**options: Any) -> Clients:
    turns: Any = object()  # nothing here needs them
    return Clients(changed(NsqdOptions(), **options), turns)


def admitted(clients: Clients, *connections: Connection) -> list[bool]:
    return [clients.admit(one) for one in connections]  # type: ignore[arg-type]  # likewise


def test_connections_beyond_the_limit_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The refusals are logged once, and once more after a client has left."""
    clients = clients_with()
    clients.connections_max = 2
    first, *others = (Connection(clients) for _ in range(4))
    assert [True, True, False, False] == admitted(clients, first, *others)
    assert ["TCP: refusing connections: the limit of 2 clients is reached"] == caplog.messages

    first.close()
    assert [True, False] == admitted(clients, first, others[-1])
    assert 2 == len(caplog.messages)
    assert {first, others[0]} == clients.connections


async def test_a_client_that_reads_is_not_aborted() -> None:
    """Clients that read everything within STOP_SECONDS are closed but not aborted."""
    clients = clients_with()
    await clients.wait_closed()
    early = Connection(clients)
    admitted(clients, early)
    early.close()
    connections = [Connection(clients, reads_in=seconds) for seconds in (0.0, 0.01, 0.02)]
    admitted(clients, *connections)
    clients.close()
    await clients.wait_closed()

    assert [(1, 0)] * 3 == [(one.closed, one.aborted) for one in connections]


async def test_a_client_that_does_not_read_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing is aborted `STOP_SECONDS` after it was closed."""
    monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    clients = clients_with()
    quiet = Connection(clients, reads_in=None)
    admitted(clients, quiet)
    clients.close()
    await clients.wait_closed()

    assert (1, 1) == (quiet.closed, quiet.aborted)
    assert not clients.connections


async def test_a_client_is_disconnected_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the client with the address is closed, and aborted if it does not read."""
    monkeypatch.setattr(module, "STOP_SECONDS", 0.02)
    clients = clients_with()
    reader, quiet, other = (Connection(clients, reads_in=seconds) for seconds in (0.01, None, 0))
    admitted(clients, reader, quiet, other)
    named = {"a:1": reader, "b:1": quiet, "c:1": other}
    by_session = {Mock(remote_address=at): one for at, one in named.items()}
    clients.turns = Mock(by_session=by_session, loop=asyncio.get_running_loop())

    assert [True, True, False] == [await clients.disconnect(at) for at in ("a:1", "b:1", "d:1")]
    assert [(1, 0), (1, 1), (0, 0)] == [(one.closed, one.aborted) for one in named.values()]
    assert {other} == clients.connections


def test_auth_is_required_if_there_is_an_authd() -> None:
    """An authd makes AUTH required; an audit file alone does not."""
    assert clients_with().authenticator is None
    assert clients_with(audit_file="audit").authenticator is None
    assert isinstance(
        clients_with(auth_http_addresses=("127.0.0.1:1",)).authenticator, Authenticator
    )
