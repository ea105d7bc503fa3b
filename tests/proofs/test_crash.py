"""A few crash points and the controls; and the choice of the points."""

import random
from pathlib import Path

import pytest
from proofs.crash import SHARES, Point, points, prove, without_guard
from proofs.kill import LATE_COMMIT, LATE_FINISH
from proofs.outcome import Plan

from tests.support import strace

needs_strace = pytest.mark.skipif(bool(strace.missing()), reason=strace.missing() or "-")


@needs_strace
@pytest.mark.timeout(300)
def test_no_crash_point_loses_a_message() -> None:
    """nsqd that is killed at the Nth call of a kind loses, splits and redelivers nothing."""
    outcome = prove(Plan(seed=20261121, count=6, control=False))

    assert outcome.held, outcome.figures
    assert "crash points tried: 0 " not in outcome.figures


@needs_strace
@pytest.mark.timeout(300)
def test_the_proof_finds_a_late_commit(tmp_path: Path) -> None:
    """With the write after the OK, the same points lose messages."""
    verdict = without_guard(LATE_COMMIT, 20261121, tmp_path, opens=0)

    assert verdict.lost > 0, verdict.line()


@needs_strace
@pytest.mark.timeout(300)
def test_the_proof_finds_a_late_finish(tmp_path: Path) -> None:
    """With FINs written late, the same points redeliver finished messages."""
    verdict = without_guard(LATE_FINISH, 20261121, tmp_path, opens=0)

    assert verdict.returned > 0, verdict.line()


def test_crash_points_count_from_the_first_call() -> None:
    """The points of a call are N = 1, 2, 3 and so on, without repetition, as many as requested."""
    found = points(500, random.Random(1))

    assert 500 == len(set(found))
    whole = points(sum(SHARES.values()), random.Random(1))
    writes = sorted(point.number for point in whole if point.call == "write")
    assert list(range(1, SHARES["write"] + 1)) == writes


def test_files_opened_before_the_data_are_not_counted() -> None:
    """For openat, N counts from nsqd's first data file."""
    assert "inject=openat:signal=KILL:when=703" in Point("openat", 3).prefix(700)
    assert "inject=unlinkat:signal=KILL:when=3" in Point("unlinkat", 3).prefix(700)
