"""RDY over real sockets: scripted nsqds count what a consumer allows them to send.

Connections are made and lost; messages are delivered, finished, failed or left to expire; limits
change. After each step the test waits until the connections are quiet, and checks the counts.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sparq.client import Consumer, Message, discovery
from sparq.client.rdy import RdyWindow
from tests.client.scripted import Peer, ScriptedNsqd
from tests.support.waiting import let_all_run, until

NSQDS = 4
TURNS_MAX = 20_000
OPTIONS: dict[str, Any] = {
    "max_reconnect_delay": 0.01,
    "backoff_multiplier": 0.001,
    "max_backoff_duration": 0.004,
    "rdy_redistribute_interval": 0.005,
    "low_rdy_idle_timeout": 1.0,
    "low_rdy_timeout": 1.0,
    "max_attempts": 0,
    "stop_timeout": 0.0,
}

number = st.integers(0, 1000)


class ScriptedNsqds(RuleBasedStateMachine):
    """A consumer and scripted nsqds on one event loop, which runs only during a step."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.nsqds: list[ScriptedNsqd] = []
        self.up: set[ScriptedNsqd] = set()
        self.held: list[Message] = []
        self.delivered = 0
        self.charged_before = 0
        self.too_far: list[str] = []

    # Steps

    @initialize(limit=st.integers(0, 12), counts=st.lists(st.integers(1, 6), min_size=NSQDS))
    def begin(self, limit: int, counts: list[int]) -> None:
        """Start nsqds with different max_rdy_counts, and a consumer of all."""

        async def begin() -> None:
            for count in counts[:NSQDS]:
                nsqd = ScriptedNsqd()
                nsqd.facts["max_rdy_count"] = count
                await nsqd.start()
                self.nsqds.append(nsqd)
            self.up = set(self.nsqds)
            places = [nsqd.address for nsqd in self.nsqds]
            self.consumer = Consumer(
                "t", "c", nsqd_tcp_addresses=places, max_in_flight=limit, **OPTIONS
            )
            self.watch_raises()
            self.consumer.start()

        self.step(begin())

    def watch_raises(self) -> None:
        """Record each raise that, in the order of sending, makes the total exceed max_in_flight."""
        distributor = self.consumer._distributor
        plain = distributor._set
        before: dict[RdyWindow, int] = {}

        def set_ready(window: RdyWindow, count: int, now: float) -> None:
            raised = count > before.get(window, 0)
            before[window] = count
            total = sum(before.get(each, 0) for each in distributor.windows)
            if raised and total > self.consumer.max_in_flight:
                self.too_far.append(f"{total} of {self.consumer.max_in_flight}")
            plain(window, count, now)

        distributor._set = set_ready

    @rule(which=number)
    def lose_connection(self, which: int) -> None:
        """Cut a connection; the consumer reconnects."""
        if peers := self.peers():
            self.step(self.cut(peers[which % len(peers)]))

    async def cut(self, peer: Peer) -> None:
        peer.hang_up()
        await until(lambda: peer not in peer.nsqd.peers)

    @rule(which=st.integers(0, NSQDS - 1))
    def stop_or_start_nsqd(self, which: int) -> None:
        """Stop an nsqd, or start a stopped one."""
        nsqd = self.nsqds[which]
        if nsqd in self.up:
            self.up.discard(nsqd)
            self.step(nsqd.stop())
        else:
            self.up.add(nsqd)
            self.step(nsqd.start())

    @rule(which=number, count=st.integers(1, 6))
    def deliver(self, which: int, count: int) -> None:
        """Let an nsqd deliver messages, while fewer than RDY are in flight."""
        if peers := self.peers():
            self.step(self.send(peers[which % len(peers)], count))

    async def send(self, peer: Peer, count: int) -> None:
        for _ in range(min(count, peer.ready - len(peer.in_flight))):
            self.delivered += 1
            peer.deliver(self.delivered)

    @rule(which=number, how=st.sampled_from(["finish", "fail", "requeue", "touch"]))
    def answer(self, which: int, how: str) -> None:
        """Respond to one message."""
        if self.held:
            self.step(self.respond(self.held[which % len(self.held)], how))

    async def respond(self, message: Message, how: str) -> None:
        if how == "touch":
            message.touch()
            return
        self.held.remove(message)
        if how == "finish":
            message.finish()
        else:
            message.requeue(60, backoff=how == "fail")

    @rule(limit=st.integers(0, 12))
    def change_limit(self, limit: int) -> None:
        """Change `max_in_flight` while the consumer runs."""
        self.step(self.set_limit(limit))

    async def set_limit(self, limit: int) -> None:
        self.consumer.max_in_flight = limit

    @rule(which=st.integers(0, NSQDS - 1))
    def remove_nsqd(self, which: int) -> None:
        """Remove an nsqd whose messages have no response, and add it again."""
        self.step(self.remove_and_add(self.nsqds[which].address))

    async def remove_and_add(self, address: str) -> None:
        await self.consumer.disconnect_from_nsqd(address)
        self.consumer.connect_to_nsqd(address)

    # Waiting for quiet

    def peers(self) -> list[Peer]:
        """The nsqds' ends of all connections."""
        return [peer for nsqd in self.nsqds for peer in nsqd.peers]

    def step(self, work: Coroutine[Any, Any, None]) -> None:
        """Take a step, and wait until the connections are quiet."""
        self.charged_before = self.possible_messages()
        self.runner.run(self.rest(work))

    async def rest(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        taking = asyncio.create_task(self.take())
        for _ in range(TURNS_MAX):
            if self.is_at_rest():
                break
            await let_all_run(1)
        else:
            raise AssertionError(f"no rest: {self.consumer.errors} {self.counts()}")
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking
        self.held = [message for message in self.held if not message.stale]

    async def take(self) -> None:
        async for message in self.consumer:
            self.held.append(message)

    def counts(self) -> list[tuple[int, int, int]]:
        """For each connection: RDY sent, RDY received, difference of the in-flight counts."""
        found = []
        for subscription in self.consumer._subscriptions:
            window = subscription.window
            nsqd = next(each for each in self.nsqds if each.address == subscription.address)
            peer = nsqd.peers[-1] if nsqd.peers else None
            heard, in_flight = (peer.ready, len(peer.in_flight)) if peer is not None else (-1, -1)
            found.append((window.ready, heard, in_flight - window.in_flight))
        return found

    def is_at_rest(self) -> bool:
        """Whether each running nsqd has one connection and has received everything sent."""
        connected = {nsqd.address for nsqd in self.up} == set(self.consumer.connections)
        once = all(len(nsqd.peers) == (nsqd in self.up) for nsqd in self.nsqds)
        settled = all(means == hears and not off for means, hears, off in self.counts())
        taken = len([each for each in self.held if not each.stale]) == self.consumer.in_flight
        return connected and once and settled and taken and not self.is_blocked()

    def is_blocked(self) -> bool:
        """Whether a backoff block is running; it ends by itself."""
        return self.consumer._backoff.state.name == "BLOCKED"

    def possible_messages(self) -> int:
        """Unanswered messages that are possible: per connection, RDY or in flight, if higher."""
        return sum(max(peer.ready, len(peer.in_flight)) for peer in self.peers())

    # Invariants

    @invariant()
    def rdy_is_bounded(self) -> None:
        """The nsqds' RDY counts add up to at most max_in_flight; each is at most max_rdy_count."""
        if not self.nsqds:
            return
        peers = self.peers()
        assert self.too_far == []
        assert sum(peer.ready for peer in peers) <= self.consumer.max_in_flight
        assert all(peer.ready <= peer.nsqd.facts["max_rdy_count"] for peer in peers)

    @invariant()
    def messages_are_bounded(self) -> None:
        """`possible_messages` exceeds max_in_flight only while it decreases to a lowered limit."""
        if self.nsqds:
            assert self.possible_messages() <= max(self.consumer.max_in_flight, self.charged_before)

    @invariant()
    def some_connection_has_rdy(self) -> None:
        """If another message is allowed, some connection has RDY, also during a probe."""
        if self.nsqds and self.peers() and self.possible_messages() < self.consumer.max_in_flight:
            assert any(peer.ready for peer in self.peers())

    @invariant()
    def all_rdy_is_used(self) -> None:
        """Without backoff all of max_in_flight is used, up to what the nsqds allow."""
        if self.nsqds and self.consumer.backoff_level == 0:
            allowed = sum(peer.nsqd.facts["max_rdy_count"] for peer in self.peers())
            assert self.possible_messages() >= min(self.consumer.max_in_flight, allowed)

    def teardown(self) -> None:
        """Stop the consumer and the nsqds."""

        async def end() -> None:
            await self.consumer.stop()
            for nsqd in self.up:
                await nsqd.stop()

        if self.nsqds:
            self.runner.run(end())
        self.runner.close()


def test_rdy_never_exceeds_max_in_flight(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens to connections and messages, RDY never exceeds max_in_flight."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    monkeypatch.setattr(discovery, "FIRST_DELAY", 0.002)
    run_state_machine_as_test(
        ScriptedNsqds, settings=settings(max_examples=15, stateful_step_count=25, deadline=None)
    )
