"""How far event time has come, told apart by nsqd."""

from sparq.pipeline.watermark import QUIET_BATCHES, Watermark


def test_the_slowest_nsqd_holds_the_mark():
    """What one nsqd has not yet given may still belong to any later time than the mark."""
    mark = Watermark()
    mark.advance(0, {"a": 100, "b": 40})
    mark.advance(1, {"a": 900})

    assert mark.low_s == 40


def test_an_nsqd_that_gives_nothing_any_more_lets_go():
    """One that is gone, or that nobody publishes to, must not keep every window open."""
    mark = Watermark()
    mark.advance(0, {"a": 100, "b": 40})
    for batch in range(1, QUIET_BATCHES):
        mark.advance(batch, {"a": 100 + batch})

    assert mark.low_s == 40

    mark.advance(QUIET_BATCHES, {"a": 500})

    assert mark.low_s == 500


def test_the_mark_never_goes_back():
    """Neither older clicks nor an nsqd that joins late reopen what has been closed."""
    mark = Watermark()
    mark.advance(0, {"a": 100})
    mark.advance(1, {"a": 50, "b": 7})

    assert mark.low_s == 100


def test_it_goes_on_from_its_books():
    """A restart repeats what would have come without it."""
    first = Watermark()
    first.advance(0, {"a": 100, "b": 40})
    second = Watermark(first.books())
    for mark in (first, second):
        mark.advance(1, {"b": 60})

    assert first.low_s == second.low_s == 60
