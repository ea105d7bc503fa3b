"""client.pool: one connection per address, reconnected after growing, bounded delays."""

import asyncio
import random
import sys
from collections import Counter

import pytest

from sparq.client.config import Config
from sparq.client.connection import open_connection
from sparq.client.errors import WrongPeerError
from sparq.client.pool import Pool, background
from tests.support.waiting import let_all_run, stays, until


class SimulatedConnections:
    """Simulated connections: which addresses answer, and which are connected."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.connected: dict[str, asyncio.Event] = {}
        self.tries: Counter[str] = Counter()
        self.times: list[float] = []
        self.losses = 0

    async def serve(self, address: str) -> None:
        """Stay connected until ``lose``; fail if the address is not up."""
        self.tries[address] += 1
        self.times.append(asyncio.get_running_loop().time())
        if address not in self.up:
            raise WrongPeerError("not here")
        self.connected[address] = asyncio.Event()
        try:
            await self.connected[address].wait()
        finally:
            del self.connected[address]

    def lose(self, address: str) -> None:
        """End the connection to an address."""
        self.connected[address].set()

    def lost(self) -> None:
        """Count a loss that the pool reports."""
        self.losses += 1

    def pool(self, *given: str, max_delay: float = 0.2) -> Pool:
        """A pool that uses these simulated connections."""
        return Pool(given, self.serve, self.lost, max_delay=max_delay, rng=random.Random(1))


def listed(*addresses: str) -> dict[str, float]:
    """The addresses, as an nsqlookupd lists them that is asked now."""
    return dict.fromkeys(addresses, asyncio.get_running_loop().time())


async def test_an_address_is_retried_with_growing_bounded_delays() -> None:
    """An address is retried with growing delays up to the limit, until it answers."""
    connections = SimulatedConnections()
    pool = connections.pool("a:1")
    pool.start()
    await until(lambda: connections.tries["a:1"] == 9)
    assert pool.errors == {"a:1": "not here"}
    delays = [
        after - before
        for before, after in zip(connections.times, connections.times[1:], strict=False)
    ]

    connections.up.add("a:1")
    await until(lambda: connections.connected)
    await pool.close()

    assert 0.05 <= delays[0]
    assert 0.1 <= min(delays[1:])
    assert max(delays) < 5, "without a limit the last would be 6.4 s at least"
    assert connections.losses == 0
    assert not connections.connected


async def test_a_listed_address_that_vanishes_is_kept_until_it_is_lost() -> None:
    """An address no longer listed keeps its connection; once lost, it is not reconnected."""
    connections = SimulatedConnections()
    connections.up = {"a:1", "b:2"}
    pool = connections.pool("a:1")
    pool.start()
    pool.update(listed("b:2"))
    await until(lambda: len(connections.connected) == 2)

    pool.update(listed())
    await let_all_run()
    assert set(connections.connected) == {"a:1", "b:2"}

    connections.lose("a:1")
    connections.lose("b:2")
    await until(lambda: connections.tries["a:1"] == 2 and connections.losses == 2)
    await until(lambda: "a:1" in connections.connected and "b:2" not in pool._keepers)
    assert connections.tries["b:2"] == 1

    pool.update(listed("b:2"))
    await until(lambda: set(connections.connected) == {"a:1", "b:2"})
    await pool.close()


async def test_a_lost_address_is_not_tried_by_an_answer_from_before_the_loss() -> None:
    """A lost address that is only listed is tried by an answer asked later, or once it is added."""
    connections = SimulatedConnections()
    connections.up = {"a:1"}
    pool = connections.pool()
    pool.start()
    old = listed("a:1")
    pool.update(old)
    await until(lambda: connections.connected)

    connections.lose("a:1")
    await until(lambda: connections.losses == 1)
    pool.update(old)
    await stays(lambda: connections.tries["a:1"] == 1)
    assert (["a:1"], {"a:1": "connection lost"}) == (pool.wanted, pool.errors)
    pool.update(listed("a:1"))
    await until(lambda: connections.connected)

    connections.lose("a:1")
    await until(lambda: connections.losses == 2)
    pool.add("a:1")
    await until(lambda: connections.connected)
    await pool.close()


async def test_a_removed_address_is_not_connected_until_it_is_added_again() -> None:
    """A removed address is not connected, even if listed, until added; others are unaffected."""
    connections = SimulatedConnections()
    connections.up = {"a:1", "b:2"}
    pool = connections.pool("a:1")
    pool.start()
    pool.add("b:2")
    await until(lambda: len(connections.connected) == 2)

    pool.remove("a:1")
    await pool.drop("a:1")
    pool.update(listed("a:1"))
    assert set(connections.connected) == {"b:2"}
    assert pool.given == {"b:2"}
    with pytest.raises(ValueError, match="c:3 is not among"):
        pool.remove("c:3")

    pool.add("a:1")
    await until(lambda: len(connections.connected) == 2)
    await pool.close()
    assert connections.tries == Counter({"a:1": 2, "b:2": 1})


async def test_a_loss_is_reported_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Only lost connections are reported, not failed attempts; a reason is logged once."""
    connections = SimulatedConnections()
    connections.up = {"a:1"}
    pool = connections.pool("a:1", "b:2", max_delay=0.1)
    pool.start()
    await until(lambda: connections.connected and connections.tries["b:2"] == 4)
    connections.lose("a:1")
    await until(lambda: connections.tries["a:1"] == 2)
    await pool.close()

    assert connections.losses == 1
    assert [record.getMessage() for record in caplog.records] == [
        "nsqd b:2: not here",
        "nsqd a:1: connection lost",
    ]


async def test_a_log_line_has_the_address_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log line does not repeat the address if the error's text starts with it."""

    async def serve(address: str) -> None:
        raise WrongPeerError(f"nsqd {address}: the peer answers in HTTP")

    pool = Pool(["a:1"], serve, lambda: None, max_delay=0.1, rng=random.Random(1))
    pool.start()
    await until(lambda: "a:1" in pool.errors)
    await pool.close()

    assert ["nsqd a:1: the peer answers in HTTP"] == [line.getMessage() for line in caplog.records]


async def test_a_retired_pool_connects_to_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """After ``retire`` nothing is connected or reconnected, and no loss is logged."""
    connections = SimulatedConnections()
    connections.up = {"a:1"}
    pool = connections.pool("a:1")
    pool.start()
    await until(lambda: connections.connected)

    pool.retire()
    pool.update(listed("b:2"))
    connections.lose("a:1")
    await until(lambda: not pool.errors and not connections.connected)
    await stays(lambda: connections.tries == Counter({"a:1": 1}), 0.15)

    assert caplog.records == []
    await pool.close()


async def test_an_invalid_host_name_is_an_error_of_its_address() -> None:
    """An invalid host name is an error of its address; the pool goes on."""

    async def serve(address: str) -> None:
        await open_connection(address, Config())

    pool = Pool(["a..b:1"], serve, lambda: None, max_delay=0.1, rng=random.Random(1))
    pool.start()
    await until(lambda: "a..b:1" in pool.errors)
    assert "label" in pool.errors["a..b:1"]
    assert pool._keepers
    await pool.close()


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
