"""Page tokens, which clients send back and which are not trusted."""

from __future__ import annotations

import pytest

from sparq.nsqadmin.messages import ListPosition, places_in, token_of


def test_tokens_are_not_trusted() -> None:
    """A token is read exactly; malformed, cut or oversized ones raise ValueError."""
    places = {
        "a:1": ListPosition("x", (0, 5), 0.5),
        "b:1": ListPosition(is_done=True, progress=1.0),
    }
    token = token_of(places)
    assert token is not None
    assert places == places_in(token)
    assert token_of({"a": ListPosition(is_done=True)}) is None
    bomb = token_of({"a" * 3_000_000: ListPosition()})
    assert bomb is not None
    for bad in ("", "x", "W10", token[:-20], "a" * 100_000, bomb, "é"):
        with pytest.raises(ValueError, match="use the `next` of an earlier answer"):
            places_in(bad)
