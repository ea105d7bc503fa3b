"""The choice of a host, TOUCH for messages that are handled slowly, and timings."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.client.message import Message
from sparq.tools import relay
from sparq.tools.commands import MODES
from sparq.tools.relay import HostPool, Relay, Timings
from tests.support.waiting import until


def test_a_line_is_logged_every_n_messages() -> None:
    """Each line is about the messages since the last one, and has the total number."""
    lines: list[str] = []
    times = Timings(100, "[here]:", lines.append)
    for number in range(100, 0, -1):
        times.note(number / 1000)
    for _ in range(199):
        times.note(0.5)

    assert lines == [
        "[here]: finished 100 - 99th: 99.00ms - 95th: 95.00ms - avg: 50.50ms",
        "[here]: finished 200 - 99th: 500.00ms - 95th: 500.00ms - avg: 500.00ms",
    ]


def test_with_0_no_line_is_logged() -> None:
    """With 0 there are no lines, and no times are kept."""
    lines: list[str] = []
    times = Timings(0, "", lines.append)
    times.note(1.0)

    assert [] == lines
    assert [] == list(times._seconds)


def test_the_number_of_kept_times_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept times is limited, however large N is."""
    monkeypatch.setattr(relay, "KEPT_MAX", 10)
    lines: list[str] = []
    times = Timings(1000, "", lines.append)
    for number in range(1000):
        times.note(number / 1000)

    assert lines == [" finished 1000 - 99th: 9.00ms - 95th: 9.00ms - avg: 4.50ms"]


NAMES = ["a", "b", "c"]


def pool(mode: str, names: list[str], seed: int = 0) -> HostPool:
    """Return a pool whose random choices are the same in each run."""
    return HostPool(mode, names, random.Random(seed))


def test_round_robin_chooses_each_host_in_turn() -> None:
    """Failing hosts have their turn, too; a repeated name has one turn."""
    hosts = pool("round-robin", ["a", "b", "a", "c"])
    hosts.failed("b", 0)

    assert list("abcabc") == [hosts.choose(0) for _ in range(6)]


def test_a_failed_host_is_skipped_for_30_s() -> None:
    """After 30 s the host is tried once; the others are chosen in turn all the time."""
    hosts = pool("hostpool", NAMES)
    hosts.failed("b", 0)

    assert list("acac") == [hosts.choose(29.9) for _ in range(4)]
    assert Counter(a=5, b=1, c=4) == Counter(hosts.choose(30) for _ in range(10))


def test_the_retry_time_doubles_up_to_15_min() -> None:
    """The time doubles with each failed retry; further failures at the same time do not count."""
    hosts = pool("hostpool", NAMES)
    now, waits = 0.0, []
    hosts.failed("b", now)
    for _ in range(7):
        began = now
        while "b" not in [hosts.choose(now) for _ in NAMES]:
            now += 1
        waits.append(now - began)
        for _ in range(3):
            hosts.failed("b", now)

    assert [30, 60, 120, 240, 480, 900, 900] == waits


def test_one_success_ends_the_failed_state() -> None:
    """The host has its turn again, and its next failure counts as the first."""
    hosts = pool("hostpool", NAMES)
    hosts.failed("b", 0)
    for now in (30, 90):
        assert "b" in [hosts.choose(now) for _ in NAMES]
        hosts.failed("b", now)
    hosts.succeeded("b", 91, 0.1)

    assert set(NAMES) == {hosts.choose(91) for _ in NAMES}
    hosts.failed("b", 91)
    assert "b" in [hosts.choose(121) for _ in NAMES]


@pytest.mark.parametrize("mode", MODES)
def test_if_all_hosts_have_failed_all_are_tried(mode: str) -> None:
    """If no host were tried, the message would only be delayed."""
    hosts = HostPool(mode, NAMES, random.Random(1))
    for name in NAMES:
        hosts.failed(name, 0)

    assert Counter(a=3, b=3, c=3) == Counter(hosts.choose(1) for _ in range(9))


def chosen(hosts: HostPool, now: float, count: int = 3000) -> Counter[str]:
    """Return how often each host is chosen."""
    return Counter(hosts.choose(now) for _ in range(count))


def test_fast_hosts_are_chosen_more_often() -> None:
    """Their share is proportional to their speed; an unmeasured host counts as the fastest."""
    hosts = pool("epsilon-greedy", NAMES, 2)
    for _ in range(20):
        hosts.succeeded("a", 0, 0.010)
        hosts.succeeded("b", 0, 0.040)
    counts = chosen(hosts, 1)

    assert 3.2 < counts["a"] / counts["b"] < 5
    assert 0.8 < counts["a"] / counts["c"] < 1.25


def test_old_response_times_fade() -> None:
    """After 5 min a measurement counts a third, so that a slow host is chosen again."""
    hosts = pool("epsilon-greedy", NAMES[:2], 3)
    for _ in range(10):
        hosts.succeeded("a", 0, 1.0)
        hosts.succeeded("b", 0, 0.1)
    for _ in range(10):
        hosts.succeeded("a", 1500, 0.1)
        hosts.succeeded("b", 1500, 0.1)
    counts = chosen(hosts, 1500)

    assert 0.85 < counts["a"] / counts["b"] < 1.15


def test_exploring_choices_ignore_speed() -> None:
    """Three in ten choices ignore speed at first, then fewer, but never none."""
    hosts = pool("epsilon-greedy", NAMES[:2], 4)
    hosts.succeeded("a", 0, 0.0001)
    hosts.succeeded("b", 0, 1000.0)

    first, later = chosen(hosts, 1, 100)["b"], chosen(hosts, 1, 20_000)["b"]

    assert first >= 5
    assert 60 <= later <= 160


def test_the_fastest_host_is_skipped_while_it_fails() -> None:
    """After 30 s the host is tried once."""
    hosts = pool("epsilon-greedy", NAMES, 5)
    hosts.succeeded("a", 0, 0.001)
    hosts.failed("a", 0)

    assert 0 == chosen(hosts, 29)["a"]
    assert 1 == chosen(hosts, 31, 100)["a"]


@given(
    st.sampled_from(MODES),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.floats(0, 1000))),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
def test_no_host_is_tried_twice_with_one_message(
    mode: str, seed: int, story: list[tuple[str, bool, float]], tried: set[str]
) -> None:
    """After any outcomes there is a choice, and never a host that was tried with the message."""
    hosts, now = HostPool(mode, NAMES, random.Random(seed)), 0.0
    for name, well, seconds in story:
        now += seconds
        if well:
            hosts.succeeded(name, now, seconds)
        else:
            hosts.failed(name, now)

        assert hosts.choose(now, tried) in set(NAMES) - tried


class FakeMessage:
    """A message with this many seconds left; each touch gives it the same time again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expires_at = time.monotonic() + seconds
        self.responded = False
        self.touched_at: list[float] = []

    def touch(self) -> None:
        """Note the time."""
        self.touched_at.append(time.monotonic())
        self.expires_at = time.monotonic() + self.seconds

    async def finish(self) -> None:
        """Nothing to do."""
        self.responded = True

    def __len__(self) -> int:
        return 1


@asynccontextmanager
async def held(monkeypatch: pytest.MonkeyPatch, *messages: FakeMessage) -> AsyncIterator[None]:
    """Hand these messages to a host that answers at the end of the block."""
    monkeypatch.setattr(relay, "TICK_SECONDS", 0.005)
    answered = asyncio.Event()

    async def send(_: str) -> None:
        await answered.wait()

    running = Relay(HostPool("hostpool", ["a"], random.Random(1)), 0, 10)
    stop = asyncio.Event()
    serving = asyncio.create_task(running.serve([], stop, 0))
    sent = [
        asyncio.create_task(running.forward(cast(Message, message), send)) for message in messages
    ]
    try:
        yield
    finally:
        answered.set()
        await asyncio.gather(*sent)
        counts = [len(message.touched_at) for message in messages]
        await asyncio.sleep(0.02)
        stop.set()
        await serving
        assert counts == [len(message.touched_at) for message in messages]


async def test_each_message_is_touched_after_half_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next touch is due after half of the new time; an answered message gets none."""
    began = time.monotonic()
    quick, slow, endless = FakeMessage(0.4), FakeMessage(0.8), FakeMessage(float("inf"))
    messages: list[Any] = [quick, slow, endless]
    async with held(monkeypatch, *messages):
        await until(lambda: all(len(message.touched_at) >= 3 for message in (quick, slow)))

    assert [] == endless.touched_at
    for message in (quick, slow):
        times = [began, *message.touched_at]
        assert all(b - a >= message.seconds / 2 for a, b in pairwise(times))


async def test_answered_and_timed_out_messages_are_not_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nsqd would refuse both touches; a message that still waits is touched."""
    waiting, answered, timed_out = FakeMessage(0.4), FakeMessage(0.4), FakeMessage(-1)
    answered.responded = True
    async with held(monkeypatch, waiting, answered, timed_out):
        await until(lambda: bool(waiting.touched_at))

    assert ([], []) == (answered.touched_at, timed_out.touched_at)
