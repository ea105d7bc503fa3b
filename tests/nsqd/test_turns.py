"""The loop polls before it sleeps if requests have arrived at short gaps.

The tests count the polls of a scripted loop with a manual clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.nsqd import turns
from sparq.nsqd.turns import AWAKE_NS, SHORT_GAPS_MAX, SHORT_GAPS_MIN, Turns
from sparq.protocol.instant import Instant
from sparq.testing import MemoryDisk

SHORT_NS = AWAKE_NS // 2
LONG_NS = 10 * AWAKE_NS
POLL_NS = AWAKE_NS // 10
UNSUCCESSFUL_POLLS = AWAKE_NS // POLL_NS + 1


class ManualLoop:
    """A manual event loop: a poll takes POLL_NS, everything else no time."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.ready: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.ready.append(call)

    def call_later(self, _seconds: float, _call: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def run(self, until_ns: int) -> int:
        """Run ready calls until `until_ns`; return the number of polls."""
        polls = 0
        while self.ready and self.now_ns < until_ns:
            self.ready.popleft()()
            if self.ready:
                polls += 1
                self.now_ns += POLL_NS
        self.now_ns = max(self.now_ns, until_ns)
        return polls


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def loop_turns(loop: ManualLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """The turns of an empty broker in the scripted loop."""
    now = Instant(10**18, loop.now_ns)
    clock = SimpleNamespace(**{**vars(time), "monotonic_ns": lambda: loop.now_ns})
    monkeypatch.setattr(turns, "time", clock)
    broker = Broker(BrokerOptions(), MemoryDisk(), "/data", now)
    made = Turns(broker, loop)  # type: ignore[arg-type] # see Loop
    yield made
    made.runner.stop()


def request(loop: ManualLoop, loop_turns: Turns, gap_ns: int) -> int:
    """Make a request and let `gap_ns` pass; return the number of polls meanwhile."""
    loop_turns.schedule()
    return loop.run(loop.now_ns + gap_ns)


def requests(loop: ManualLoop, loop_turns: Turns, count: int, gap_ns: int) -> list[int]:
    return [request(loop, loop_turns, gap_ns) for _ in range(count)]


def test_requests_at_short_gaps_start_polling(loop: ManualLoop, loop_turns: Turns) -> None:
    """After some short gaps the loop polls between requests; it sleeps soon after the last."""
    polls = requests(loop, loop_turns, 3 * SHORT_GAPS_MIN, SHORT_NS)

    assert not any(polls[:SHORT_GAPS_MIN])
    assert all(polls[SHORT_GAPS_MIN + 2 :])
    assert request(loop, loop_turns, LONG_NS) <= UNSUCCESSFUL_POLLS
    assert not loop.ready


def test_requests_at_long_gaps_start_no_polling(loop: ManualLoop, loop_turns: Turns) -> None:
    """At 1,000 requests per second the loop never polls."""
    assert not any(requests(loop, loop_turns, 100 * SHORT_GAPS_MIN, 1_000_000))


def test_unsuccessful_polls_raise_the_threshold(loop: ManualLoop, loop_turns: Turns) -> None:
    """Each poll without a request doubles the number of short gaps that start polling."""
    wanted = []
    for _ in range(12):
        count = 0
        while not request(loop, loop_turns, SHORT_NS):
            count += 1
        wanted.append(count)
        loop.run(loop.now_ns + LONG_NS)
        request(loop, loop_turns, LONG_NS)

    assert wanted == sorted(wanted)
    assert wanted[1] >= 2 * SHORT_GAPS_MIN
    assert SHORT_GAPS_MAX <= wanted[-1] <= SHORT_GAPS_MAX + 2


def test_successful_polls_lower_the_threshold(loop: ManualLoop, loop_turns: Turns) -> None:
    """After many successful polls, few short gaps are enough to start polling again."""
    for _ in range(3):
        while not request(loop, loop_turns, SHORT_NS):
            pass
        loop.run(loop.now_ns + LONG_NS)
    requests(loop, loop_turns, 100 * SHORT_GAPS_MIN, SHORT_NS)
    request(loop, loop_turns, LONG_NS)
    request(loop, loop_turns, LONG_NS)

    assert not any(requests(loop, loop_turns, SHORT_GAPS_MIN, SHORT_NS))
    assert any(requests(loop, loop_turns, 2 * SHORT_GAPS_MIN, SHORT_NS))
