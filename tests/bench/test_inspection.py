"""`bench.inspection` counts only delays that recur each time the same request is made."""

import pytest
from bench.inspection import Probe, report

ASKED = [(0.0, 0.05), (0.2, 0.25), (0.4, 0.45)]
PAUSED = [(0.1, 0.15), (0.3, 0.35), (0.5, 0.55)]


def delayed(*spans: tuple[float, float], seconds: float) -> list[tuple[float, float]]:
    """Return the times of messages: those that begin with `spans` take `seconds`, others 1 ms."""
    every = [*ASKED, *PAUSED]
    return sorted(
        (begin, begin + (seconds if (begin, end) in spans else 0.001)) for begin, end in every
    )


@pytest.mark.parametrize(
    ("ways", "holds"),
    [
        (delayed(seconds=0.001), True),
        (delayed(*ASKED, seconds=0.04), False),
        (delayed(*ASKED[1:], seconds=0.04), True),
        (delayed(*ASKED, *PAUSED, seconds=0.04), True),
    ],
    ids=["never", "each time", "not each time", "also when nothing is asked"],
)
def test_only_a_recurring_delay_counts(ways, holds, capsys):
    """A delay counts only if each request had it and the pauses did not."""
    assert report(ways, [Probe("peek", ASKED, PAUSED)], []) is holds
    assert ("DOES NOT HOLD" in capsys.readouterr().out) is not holds


def test_only_an_answer_that_is_late_each_time_counts(capsys):
    """An answer counts as late only if each one takes over 100 ms."""
    late = [(0.0, 0.11), (0.2, 0.31), (0.4, 0.52)]
    assert not report(delayed(seconds=0.001), [Probe("peek", late, PAUSED)], [])
    assert "first answers under 100 ms: 110.0 ms" in capsys.readouterr().out
    assert report(delayed(seconds=0.001), [Probe("peek", [*late[:2], ASKED[2]], PAUSED)], [])
