"""client.rdy: shares of max_in_flight as connections join, leave, fail and are answered."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparq.client.rdy import BackoffState, Distributor, RdyWindow


class Wire:
    """Records the RDY sent to each window, as nsqd knows it."""

    def __init__(self, max_in_flight: int) -> None:
        self.ready: dict[RdyWindow, int] = {}
        self.sent: list[tuple[RdyWindow, int]] = []
        self.distributor = Distributor(
            max_in_flight, idle_timeout=10, hold_timeout=30, rng=random.Random(1)
        )

    def send(self, window: RdyWindow, count: int) -> None:
        """Record RDY; no raise may take the total above max_in_flight."""
        raised = count > self.ready.get(window, 0)
        self.ready[window] = count
        self.sent.append((window, count))
        assert not raised or sum(self.ready.values()) <= self.distributor.max_in_flight

    def add(self, now: float = 0, limit: int = 2500) -> RdyWindow:
        """Add a connection."""
        window = RdyWindow(limit, lambda count: self.send(window, count))
        self.distributor.windows.append(window)
        self.distributor.plan(now)
        return window

    def remove(self, window: RdyWindow, now: float) -> None:
        """Remove a lost connection."""
        self.distributor.windows.remove(window)
        self.distributor.plan(now)

    def leave(self, window: RdyWindow, now: float) -> None:
        """Leave a connection."""
        window.leaving = True
        self.distributor.plan(now)


def test_max_in_flight_is_shared_evenly_and_completely() -> None:
    """max_in_flight 10 on 3 connections is 4, 3 and 3; without the first, 5 and 5."""
    wire = Wire(10)
    windows = [wire.add() for _ in range(3)]
    assert sorted(window.ready for window in windows) == [3, 3, 4]

    wire.ready.pop(windows[0])
    wire.remove(windows[0], 1)

    assert [window.ready for window in windows[1:]] == [5, 5]


def test_rdy_is_sent_only_when_it_changes() -> None:
    """``plan`` and ``rotate`` send no RDY that has not changed."""
    wire = Wire(10)
    wire.add()
    wire.distributor.plan(1)
    wire.distributor.rotate(2)

    assert [count for _, count in wire.sent] == [10]


def test_rdy_above_one_connections_limit_goes_to_the_others() -> None:
    """RDY above a connection's max_rdy_count is shared equally among the others."""
    wire = Wire(1000)
    windows = [wire.add(limit=limit) for limit in (2500, 100, 2500, 250)]

    assert [window.ready for window in windows] == [325, 100, 325, 250]


def test_rdy_moves_only_as_messages_in_flight_are_answered() -> None:
    """If one connection has all messages in flight, another gets RDY only as they are answered."""
    wire = Wire(10)
    first = wire.add()
    first.in_flight = 10
    second = wire.add()
    assert (first.ready, second.ready, wire.distributor.needs_more_rdy) == (5, 0, True)

    first.in_flight = 7
    wire.distributor.plan(1)
    assert (second.ready, wire.distributor.needs_more_rdy) == (3, True)

    first.in_flight = 4
    wire.distributor.plan(2)
    assert (second.ready, wire.distributor.needs_more_rdy) == (5, False)


def test_idle_connections_pass_on_their_rdy_in_turn() -> None:
    """Idle connections pass on their RDY 1: each of five gets one of two seats in turn."""
    wire = Wire(2)
    windows = [wire.add() for _ in range(5)]
    seen = set()
    for now in range(0, 60, 5):
        wire.distributor.rotate(now)
        assert sum(window.ready for window in windows) == 2
        seen |= {window for window in windows if window.ready}

    assert seen == set(windows)


def test_a_busy_connection_passes_on_its_rdy_after_hold_timeout() -> None:
    """A connection that always has messages passes on its RDY 1 after hold_timeout, 30 s."""
    wire = Wire(1)
    first, second = wire.add(), wire.add()
    for now in range(5, 31, 5):
        first.last_message = now
        wire.distributor.rotate(now)
        assert (first.ready, second.ready) == (1, 0)

    first.last_message = 31
    wire.distributor.rotate(31)
    assert (first.ready, second.ready) == (0, 1)


class Connections(RuleBasedStateMachine):
    """Random joins, losses, deliveries and responses, checked against nsqd's view of RDY."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wire = Wire(4)
        self.windows: list[RdyWindow] = []

    def pick(self, number: int) -> RdyWindow:
        """Choose one of the windows."""
        return self.windows[number % len(self.windows)]

    @rule(limit=st.integers(1, 6))
    def connect(self, limit: int) -> None:
        """A connection subscribes."""
        self.windows.append(self.wire.add(self.now, limit))

    @precondition(lambda self: self.windows)
    @rule(number=st.integers(0, 100))
    def lose(self, number: int) -> None:
        """A connection is lost with its messages in flight."""
        window = self.pick(number)
        self.windows.remove(window)
        self.wire.ready.pop(window, None)
        self.wire.remove(window, self.now)

    @precondition(lambda self: self.windows)
    @rule(number=st.integers(0, 100))
    def leave(self, number: int) -> None:
        """The consumer leaves a connection."""
        self.wire.leave(self.pick(number), self.now)

    @precondition(lambda self: self.windows)
    @rule(number=st.integers(0, 100))
    def deliver(self, number: int) -> None:
        """nsqd delivers while fewer than RDY messages are in flight."""
        window = self.pick(number)
        if window.in_flight < self.wire.ready.get(window, 0):
            window.in_flight += 1
            window.last_message = self.now

    @precondition(lambda self: self.windows)
    @rule(number=st.integers(0, 100))
    def answer(self, number: int) -> None:
        """A message gets its response."""
        window = self.pick(number)
        window.in_flight = max(0, window.in_flight - 1)
        if self.wire.distributor.needs_more_rdy:
            self.wire.distributor.plan(self.now)

    @rule(state=st.sampled_from(BackoffState))
    def back_off(self, state: BackoffState) -> None:
        """The backoff changes its state."""
        self.wire.distributor.state = state
        self.wire.distributor.plan(self.now)

    @rule(count=st.integers(0, 12))
    def change_limit(self, count: int) -> None:
        """max_in_flight is changed while running."""
        self.wire.distributor.max_in_flight = count
        self.wire.distributor.plan(self.now)

    @rule(seconds=st.floats(0.1, 40))
    def pass_time(self, seconds: float) -> None:
        """Time passes and the seats rotate."""
        self.now += seconds
        self.wire.distributor.rotate(self.now)

    @invariant()
    def total_rdy_is_at_most_max_in_flight(self) -> None:
        """The windows' RDY equals what was sent; the total never exceeds max_in_flight."""
        total = sum(self.wire.ready.get(window, 0) for window in self.windows)
        assert total <= self.wire.distributor.max_in_flight
        for window in self.windows:
            assert window.ready == self.wire.ready.get(window, 0)
            assert not (window.leaving and window.ready)

    @invariant()
    def as_many_connections_have_rdy_as_may(self) -> None:
        """As many connections have RDY as may, unless messages in flight prevent it.

        While probing it is one connection, while blocked none.
        """
        distributor = self.wire.distributor
        charged = sum(window.charge for window in self.windows)
        staying = sum(1 for window in self.windows if not window.leaving)
        wanted = {BackoffState.CLEAR: staying, BackoffState.PROBING: 1, BackoffState.BLOCKED: 0}
        seats = min(wanted[distributor.state], distributor.max_in_flight, staying)
        ready = sum(1 for window in self.windows if window.ready)
        assert distributor.state is BackoffState.CLEAR or ready <= seats
        assert ready >= seats or charged >= distributor.max_in_flight or distributor.needs_more_rdy


Connections.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestConnections = Connections.TestCase
