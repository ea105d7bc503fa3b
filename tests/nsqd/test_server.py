"""The Nsqd object: waiting for answers of the broker, drains, and an orderly stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparq.broker.draining import Drain
from sparq.nsqd.server import FutureTicket
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
    assert not nsqd.nsqd.clients.connections
    with pytest.raises(Closed):
        await consumer.frame()
    again = await start(tmp_path)
    assert 2 == (await again.channel("t", "c"))["depth"]
    await stop(again)
