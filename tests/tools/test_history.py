"""What is remembered from look to look: nsqds that are gone, how long a channel was idle."""

from __future__ import annotations

import pytest

from sparq.tools import overview
from sparq.tools.overview import Counts, NsqdSample, SampleHistory


def seen(at: float, finished: int = 0, depth: int = 5, *, start_time: int = 7) -> NsqdSample:
    """One channel with a consumer, at a moment."""
    return NsqdSample(at, start_time, {("t", "c"): Counts(9, depth, finished, clients=1)})


def test_a_channel_is_idle_since_it_finished_something() -> None:
    """Only while something waits; one that finishes again is busy again."""
    past = SampleHistory()
    idle = []
    for at, finished, depth in (
        (0, 0, 5),
        (6, 0, 5),
        (12, 0, 5),
        (14, 1, 4),
        (15, 1, 4),
        (16, 1, 0),
    ):
        (row,) = past.add({"a:1": seen(at, finished, depth)}, float(at)).rows
        idle.append((row.idle_seconds, row.state.words))

    expected = [(None, "ok"), (6.0, "ok"), (12.0, "stuck"), (None, "ok"), (1.0, "ok"), (None, "ok")]
    assert expected == idle


def test_whoever_has_no_time_takes_one_interval() -> None:
    """A program that looks once says `stuck` of what finished nothing in its interval."""
    past = SampleHistory(patience_seconds=0.0)
    past.add({"a:1": seen(0.0)}, 0.0)
    assert "stuck" == past.add({"a:1": seen(1.0)}, 1.0).rows[0].state.words
    assert "ok" == past.add({"a:1": seen(2.0, 1)}, 2.0).rows[0].state.words


def test_an_nsqd_that_is_gone_is_kept_until_it_is_back_or_forgotten() -> None:
    """With its last figures, and for how long; when it is back its rate is over all that time."""
    past = SampleHistory()
    past.add({"a:1": seen(0.0), "b:1": seen(0.0, 10)}, 0.0)
    gone = past.add({"a:1": seen(2.0)}, 2.0)
    still = past.add({"a:1": seen(4.0)}, 4.0)

    assert (2.0, 4.0) == (gone.gone["b:1"].seconds, still.gone["b:1"].seconds)
    assert (10, ("b:1",)) == (still.rows[0].depth, still.rows[0].gone)
    assert [("a:1", False), ("b:1", True)] == [
        (part.address, part.is_gone) for part in past.parts(("t", "c"))
    ]
    back = past.add({"a:1": seen(8.0), "b:1": seen(8.0, 26)}, 8.0)
    assert ({}, 2.0) == (back.gone, back.rows[0].out_rate)
    past.add({"a:1": seen(9.0)}, 9.0)
    past.forget_gone()
    assert {} == past.add({"a:1": seen(10.0)}, 10.0).gone
    assert [] == past.parts(("t", "other"))


def test_an_nsqd_that_was_restarted_has_no_rate_at_first() -> None:
    """Its counters begin anew."""
    past = SampleHistory()
    past.add({"a:1": seen(0.0, 50)}, 0.0)
    assert past.add({"a:1": seen(2.0, 1, start_time=8)}, 2.0).rows[0].out_rate is None


def test_what_is_gone_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsqlookupd that lists new addresses at each look fills no memory."""
    monkeypatch.setattr(overview, "GONE_MAX", 20)
    past = SampleHistory()
    for number in range(30):
        now = past.add({f"{number}:1": seen(float(number))}, float(number))

    assert {f"{number}:1" for number in range(9, 29)} == now.gone.keys()
