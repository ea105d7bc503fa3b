"""client.discovery: one connection per address, reconnected after growing, bounded delays."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from sparq.client import Producer
from sparq.client.config import Config
from sparq.client.discovery import Connecting, background
from sparq.client.errors import ConnectionLostError, WrongPeerError
from tests.support.waiting import let_all_run, stays, until


class SimulatedPool(Connecting):
    """A pool with simulated connections: which addresses answer, and which are connected."""

    def __init__(self, *given: str, up: Iterable[str] = (), max_delay: float = 0.2) -> None:
        super().__init__(["a:1"], (), None, Config(max_reconnect_delay=max_delay), None)
        self._given = set(given)
        self._lookups.recheck = self.note_loss  # type: ignore[method-assign]  # counts losses
        self.up = set(up)
        self.connected: dict[str, asyncio.Event] = {}
        self.tries: Counter[str] = Counter()
        self.times: list[float] = []
        self.losses = 0

    async def _serve(self, address: str) -> ConnectionLostError:
        """Stay connected until ``lose``; fail if the address is not up."""
        self.tries[address] += 1
        self.times.append(asyncio.get_running_loop().time())
        if address not in self.up:
            raise WrongPeerError(f"nsqd {address}: not here")
        self.connected[address] = asyncio.Event()
        try:
            await self.connected[address].wait()
        finally:
            del self.connected[address]
        return ConnectionLostError("connection lost")

    def _require_started(self) -> None:
        pass

    def lose(self, address: str) -> None:
        """End the connection to an address."""
        self.connected[address].set()

    def note_loss(self) -> None:
        """Count a loss that the pool reports."""
        self.losses += 1


def listed(*addresses: str) -> dict[str, float]:
    """The addresses, as an nsqlookupd lists them that is asked now."""
    return dict.fromkeys(addresses, asyncio.get_running_loop().time())


async def test_an_address_is_retried_with_growing_bounded_delays() -> None:
    """An address is retried with growing delays up to the limit, until it answers."""
    pool = SimulatedPool("a:1")
    pool._connect()
    await until(lambda: pool.tries["a:1"] == 9)
    assert pool.errors == {"a:1": "not here"}
    delays = [after - before for before, after in zip(pool.times, pool.times[1:], strict=False)]

    pool.up.add("a:1")
    await until(lambda: pool.connected)
    await pool._disconnect()

    assert 0.05 <= delays[0]
    assert 0.1 <= min(delays[1:])
    assert max(delays) < 5, "without a limit the last would be 6.4 s at least"
    assert pool.losses == 0
    assert not pool.connected


async def test_a_listed_address_that_vanishes_is_kept_until_it_is_lost() -> None:
    """An address no longer listed keeps its connection; once lost, it is not reconnected."""
    pool = SimulatedPool("a:1", up={"a:1", "b:2"})
    pool._connect()
    pool._update(listed("b:2"))
    await until(lambda: len(pool.connected) == 2)

    pool._update(listed())
    await let_all_run()
    assert set(pool.connected) == {"a:1", "b:2"}

    pool.lose("a:1")
    pool.lose("b:2")
    await until(lambda: pool.tries["a:1"] == 2 and pool.losses == 2)
    await until(lambda: "a:1" in pool.connected and "b:2" not in pool._keepers)
    assert pool.tries["b:2"] == 1

    pool._update(listed("b:2"))
    await until(lambda: set(pool.connected) == {"a:1", "b:2"})
    await pool._disconnect()


async def test_a_lost_address_is_not_tried_by_an_answer_from_before_the_loss() -> None:
    """A lost address that is only listed is tried by an answer asked later, or once it is added."""
    pool = SimulatedPool(up={"a:1"})
    pool._connect()
    old = listed("a:1")
    pool._update(old)
    await until(lambda: pool.connected)

    pool.lose("a:1")
    await until(lambda: pool.losses == 1)
    pool._update(old)
    await stays(lambda: pool.tries["a:1"] == 1)
    assert (["a:1"], {"a:1": "connection lost"}) == (pool._wanted, pool.errors)
    pool._update(listed("a:1"))
    await until(lambda: pool.connected)

    pool.lose("a:1")
    await until(lambda: pool.losses == 2)
    pool._add("a:1")
    await until(lambda: pool.connected)
    await pool._disconnect()


async def test_a_removed_address_is_not_connected_until_it_is_added_again() -> None:
    """A removed address is not connected, even if listed, until added; others are unaffected."""
    pool = SimulatedPool("a:1", up={"a:1", "b:2"})
    pool._connect()
    pool._add("b:2")
    await until(lambda: len(pool.connected) == 2)

    pool._remove("a:1")
    await pool._drop("a:1")
    pool._update(listed("a:1"))
    assert set(pool.connected) == {"b:2"}
    assert pool._given == {"b:2"}
    with pytest.raises(ValueError, match="c:3 is not among"):
        pool._remove("c:3")

    pool._add("a:1")
    await until(lambda: len(pool.connected) == 2)
    await pool._disconnect()
    assert pool.tries == Counter({"a:1": 2, "b:2": 1})


async def test_a_loss_is_reported_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Only lost connections are reported, not failed attempts; a reason is logged once."""
    pool = SimulatedPool("a:1", "b:2", up={"a:1"}, max_delay=0.1)
    pool._connect()
    await until(lambda: pool.connected and pool.tries["b:2"] == 4)
    pool.lose("a:1")
    await until(lambda: pool.tries["a:1"] == 2)
    await pool._disconnect()

    assert pool.losses == 1
    assert [record.getMessage() for record in caplog.records] == [
        "nsqd b:2: not here",
        "nsqd a:1: connection lost",
    ]


async def test_a_retired_pool_connects_to_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Once retired nothing is connected or reconnected, and no loss is logged."""
    pool = SimulatedPool("a:1", up={"a:1"})
    pool._connect()
    await until(lambda: pool.connected)

    pool._is_retired = True
    pool._update(listed("b:2"))
    pool.lose("a:1")
    await until(lambda: not pool.errors and not pool.connected)
    await stays(lambda: pool.tries == Counter({"a:1": 1}), 0.15)

    assert caplog.records == []
    await pool._disconnect()


async def test_an_invalid_host_name_is_an_error_of_its_address() -> None:
    """An invalid host name is an error of its address; the producer goes on."""
    async with Producer("a..b:1") as producer:
        await until(lambda: "a..b:1" in producer.errors)
        assert "label" in producer.errors["a..b:1"]
        assert producer._keepers


async def test_a_bug_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a background task is logged."""

    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    task = background(fail(), "the part that fails")
    await asyncio.wait([task])
    await until(lambda: "the part that fails failed" in caplog.text)

    assert "a bug" in caplog.text


def test_sys_exit_in_a_background_task_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """``sys.exit`` in a background task, such as a handler, ends the loop and logs nothing."""

    async def leave() -> None:
        sys.exit(3)

    async def main() -> None:
        await background(leave(), "the part that leaves")

    with pytest.raises(SystemExit):
        asyncio.run(main())

    assert caplog.records == []
