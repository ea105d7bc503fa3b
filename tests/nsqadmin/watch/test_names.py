"""The numbers that stand for names of topics and channels."""

from __future__ import annotations

from sparq.nsqadmin.watch.names import KEEP_SECONDS, NONE, NameNumbers


def test_unseen_names_are_forgotten_and_their_numbers_reused() -> None:
    """Names that are no longer seen are forgotten, so short-lived topics need little memory."""
    names = NameNumbers()
    for at in range(50):
        now = at * KEEP_SECONDS
        number = names.number_or_new(f"t{at}")
        kept = names.number_or_new("stays")
        names.seen([number, kept], now)  # type: ignore[arg-type]  # a list selects as well
        old = names.numbering()
        names.forget(now + 1)

    assert len(names) <= 4
    assert names.number("t0") == NONE
    assert names.number("stays") == kept
    assert ("t49", "") in old.keys


def test_names_have_a_limit() -> None:
    """Names beyond the limit are left out and counted, as is a channel without its topic."""
    names = NameNumbers(names_max=2)
    numbers = [names.number_or_new(*key) for key in (("a", ""), ("a", "c"), ("b", ""), ("b", "c"))]

    assert [0, 1, NONE, NONE] == numbers
    assert names.left_out == 2
