"""Conversion of the API's answers to JSON values."""

from __future__ import annotations

import json
import math

from sparq.cluster.rows import Reader
from sparq.nsqadmin.v2.endpoints import plain


def test_values_are_those_of_json() -> None:
    """Infinity and NaN become null, sets sorted lists."""
    shown = plain(
        {
            "lag": math.inf,
            "rates": (1.5, math.nan, None),
            "nodes": frozenset({"b", "a"}),
            "reader": Reader("h:1", "", -math.inf),
        }
    )

    expected = {"address": "h:1", "query": "", "commit_seconds": None}
    assert {
        "lag": None,
        "rates": [1.5, None, None],
        "nodes": ["a", "b"],
        "reader": expected,
    } == shown
    assert json.dumps(shown, allow_nan=False)
