"""client.rdy: one result per block, longer blocks after failures, shorter after successes."""

import random

import pytest

from sparq.client.rdy import Backoff, BackoffSignal, BackoffState


def make(strategy: str = "exponential", multiplier: float = 1, longest: float = 120) -> Backoff:
    """A backoff with go-nsq's defaults."""
    return Backoff(strategy, multiplier, longest, random.Random(1))


def test_failed_probes_double_the_block_and_successful_ones_halve_it() -> None:
    """A failed probe doubles the block, a successful one halves it, or clears it at level 1."""
    backoff = make()
    durations = []
    outcomes = [
        BackoffSignal.FAILURE,
        BackoffSignal.FAILURE,
        BackoffSignal.SUCCESS,
        BackoffSignal.SUCCESS,
    ]
    for outcome in outcomes:
        assert backoff.result(outcome)
        if backoff.state is BackoffState.BLOCKED:
            durations.append(backoff.duration())
            backoff.block_over()

    assert durations == [2, 4, 2]
    assert (backoff.state, backoff.level) == (BackoffState.CLEAR, 0)


def test_results_during_a_block_change_nothing() -> None:
    """Results during a block change nothing, whether success, failure or neutral."""
    backoff = make()
    backoff.result(BackoffSignal.FAILURE)

    assert not any(backoff.result(outcome) for outcome in BackoffSignal)
    assert (backoff.state, backoff.level) == (BackoffState.BLOCKED, 1)


def test_a_requeue_without_backoff_repeats_a_block_but_never_starts_one() -> None:
    """A requeue without backoff has no effect while clear; while probing, it repeats the block."""
    backoff = make()
    assert not backoff.result(BackoffSignal.NEUTRAL)

    backoff.result(BackoffSignal.FAILURE)
    backoff.block_over()

    assert backoff.result(BackoffSignal.NEUTRAL)
    assert (backoff.state, backoff.level) == (BackoffState.BLOCKED, 1)


def test_the_duration_of_a_block_and_the_level_are_bounded() -> None:
    """No block exceeds the limit; the level stops at 4, so few successes clear 1,000 failures."""
    backoff = make(longest=10)
    for _ in range(1000):
        backoff.result(BackoffSignal.FAILURE)
        assert backoff.duration() <= 10
        backoff.block_over()

    assert backoff.duration() == 10
    assert backoff.level == 4


@pytest.mark.parametrize(("multiplier", "longest"), [(1, 0), (0, 120)])
def test_zero_switches_backoff_off(multiplier: float, longest: float) -> None:
    """A multiplier or a maximum duration of 0 switches backoff off."""
    backoff = make(multiplier=multiplier, longest=longest)

    assert not backoff.result(BackoffSignal.FAILURE)
    assert backoff.state is BackoffState.CLEAR


def test_full_jitter_spreads_blocks_from_0_to_the_exponential_duration() -> None:
    """With full jitter, blocks are spread between 0 and the exponential duration."""
    backoff = make("full_jitter")
    backoff.result(BackoffSignal.FAILURE)
    durations = [backoff.duration() for _ in range(200)]

    assert 0 <= min(durations) < 0.2
    assert 1.8 < max(durations) <= 2
