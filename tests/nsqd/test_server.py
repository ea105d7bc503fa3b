"""The Nsqd object: waiting for answers of the broker, its V2 clients, and an orderly stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from sparq.broker.draining import Drain
from sparq.nsqd import server
from sparq.nsqd.server import FutureTicket, Nsqd
from sparq.protocol.commands import sub
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.v2_client import Closed


async def test_a_ticket_is_answered_once() -> None:
    """The first answer, None or an error, counts; later answers and cancelled waits are ignored."""
    loop = asyncio.get_running_loop()
    good, bad, given_up = (FutureTicket(loop) for _ in range(3))
    good.answered(None)
    good.answered(RemoteError("E_INVALID", "late"))
    bad.answered(RemoteError("PUB_FAILED", "full"))
    bad.answered(None)
    given_up.future.cancel()
    given_up.answered(None)

    assert good.future.result() is None
    with pytest.raises(RemoteError, match="full"):
        await bad.future
    assert given_up.future.cancelled()


async def test_watchers_are_called_after_a_drain_is_stored(nsqd: Daemon) -> None:
    """Watchers are called after the drain is on disk; a change that fails calls none."""
    path = Path(nsqd.nsqd.options.data_path) / "drain.json"
    seen: list[bool] = []
    nsqd.nsqd.drain_watchers.append(lambda: seen.append(path.exists()))
    await nsqd.nsqd.change_drains(lambda now: now.changed("", Drain(1, "me")))

    assert [True] == seen
    with pytest.raises(RemoteError, match="draining"):
        await nsqd.nsqd.publish("t", BodySlices.of([b"x"]))
    path.with_name("drain.json.new").mkdir()
    with pytest.raises(RemoteError):
        await nsqd.nsqd.change_drains(lambda now: now.changed("", Drain(2, "she")))
    assert [True] == seen
    path.with_name("drain.json.new").rmdir()


async def test_a_stop_closes_clients_and_keeps_acknowledged_messages(tmp_path: Path) -> None:
    """After a restart every unfinished message is still there, also the one in flight."""
    nsqd = await start(tmp_path)
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.post("/mpub?topic=t", b"1\n2\n3")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert [b"1"] == await consumer.messages(1)
    assert [b"2"] == await consumer.messages(1, finish=False)
    assert not nsqd.nsqd.exiting
    await stop(nsqd)

    assert nsqd.nsqd.exiting
    assert not nsqd.nsqd.connections
    with pytest.raises(Closed):
        await consumer.frame()
    again = await start(tmp_path)
    assert 2 == (await again.channel("t", "c"))["depth"]
    await stop(again)


class Connection:
    """A fake connection that counts calls, and leaves once it is closed or aborted."""

    def __init__(self, nsqd: Nsqd, *, reads_in: float | None = 0.0) -> None:
        """`reads_in`: seconds it takes to read everything; None: it never reads."""
        self.closed = self.aborted = 0
        self._nsqd, self._reads_in = nsqd, reads_in

    def flush(self) -> None:
        """Nothing is sent."""

    resume_reading = flush

    def close(self) -> None:
        self.closed += 1
        if self._reads_in is not None:
            asyncio.get_running_loop().call_later(self._reads_in, self._leave)

    def abort(self) -> None:
        self.aborted += 1
        self._leave()

    def _leave(self) -> None:
        self._nsqd.connections.discard(self)


async def test_connections_beyond_the_limit_are_refused(
    nsqd: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusals are logged once, and once more after a client has left."""
    nsqd.nsqd.connections_max = 2
    first, second, third, fourth = (Connection(nsqd.nsqd) for _ in range(4))
    admitted = [nsqd.nsqd.admit(one) for one in (first, second, third, fourth)]
    assert [True, True, False, False] == admitted
    refused = ["TCP: refusing connections: the limit of 2 clients is reached"]
    assert refused == caplog.messages

    first.abort()
    assert [True, False] == [nsqd.nsqd.admit(one) for one in (third, fourth)]
    assert 2 * refused == caplog.messages
    second.abort()
    third.abort()


async def test_clients_have_a_moment_to_read_their_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is closed, by its address or by a stop, is aborted only if it does not read."""
    monkeypatch.setattr(server, "STOP_SECONDS", 0.1)
    nsqd = await start(tmp_path)
    reader, quiet, other, last = (
        Connection(nsqd.nsqd, reads_in=seconds) for seconds in (0.01, None, 0, None)
    )
    named = {"a:1": reader, "b:1": quiet, "c:1": other, "d:1": last}
    for address, connection in named.items():
        nsqd.nsqd.admit(connection)
        nsqd.nsqd.turns.by_session[Mock(remote_address=address)] = connection
    found = [await nsqd.nsqd.disconnect(address) for address in ("a:1", "b:1", "x:1")]

    assert [True, True, False] == found
    assert {other, last} == nsqd.nsqd.connections
    await stop(nsqd)
    counts = [(one.closed, one.aborted) for one in named.values()]
    assert [(1, 0), (1, 1), (1, 0), (1, 1)] == counts


async def test_auth_is_required_if_there_is_an_authd(tmp_path: Path, nsqd: Daemon) -> None:
    """An authd makes AUTH required; without authds and tokens it is not."""
    assert nsqd.nsqd.authenticator is None
    other = await start(tmp_path / "other", auth_http_addresses=("127.0.0.1:1",))
    assert other.nsqd.authenticator is not None
    await stop(other)
