"""The command line of `sparq admin`: words and flags in any order, and the environment."""

from __future__ import annotations

import shlex

from sparq.program.verbs import read
from sparq.tools.admin.verbs import VERBS, AdminOptions
from tests.tools.admin.conftest import Cluster, Run


def test_positions_may_begin_with_a_dash(cluster: Cluster, admin: Run) -> None:
    """`-1h` is parsed as a position, not a flag; each nsqd refuses an invalid position."""
    cluster.recreate("orders", "c", messages=1, dead=False)

    assert 0 == admin("seek", "orders", "c", "-1h").status
    ran = admin("seek", "orders", "c", "yesterday")
    assert 1 == ran.status
    assert "not moved" in ran.out
    assert "INVALID_ARG_TO" in ran.out


def test_each_verb_has_a_description_and_examples() -> None:
    """Its help page shows both; each example can be parsed, and begins with the verb."""
    for name, verb in VERBS.items():
        assert verb.about.endswith("."), name
        assert verb.examples, name
        for example in verb.examples:
            words = shlex.split(example.rpartition("| sparq admin ")[2].partition(" >")[0])
            assert words[0] == name
            read("sparq admin", VERBS, words, AdminOptions, "")
