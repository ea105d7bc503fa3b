"""Handling of policy documents and of nsqds' answers to them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from sparq.cluster import policies
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.policies import PoliciesFound
from sparq.nsqadmin.pages.policies import setting_rows


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (b"", 0),
        (b"# none", 0),
        (b'[[policies]]\ntopic = "a"\n\n[[policies]]\ntopic = "b"', 2),
        (b' {"policies": [{"topic": "a"}]}', 1),
        (b"policies = 3", None),
        (b"{", None),
        (b"[[policies", None),
        (b"\xff", None),
    ],
)
async def test_policies_are_counted(document: bytes, found: int | None) -> None:
    """Policies in TOML or JSON are counted; any other document gives None."""
    assert found == await policies.count(document)


def test_written_toml_reads_as_the_same_policies() -> None:
    """TOML that was written from policies reads as the same policies."""
    given: list[policies.Policy] = [
        {"topic": "a*", "max_channels": 2},
        {"topic": "*", "channel": "c", "max_channel_lag_time": "1h0m0s"},
    ]
    assert {"policies": given} == tomllib.loads(policies.to_toml(given))
    assert "" == policies.to_toml([])


def test_changes_are_listed_by_node() -> None:
    """The numbers of all nodes are summed, and the changes that they name are listed."""
    change = {"topic": "t", "channel": None, "setting": "max_channels", "before": 0, "after": 2}
    answers: list[Any] = [{"changed": 3, "changes": [change]}, {"changed": 0}, {}]
    report = Report([StepOutcome(f"n:{n}", "policies", "", one) for n, one in enumerate(answers)])

    assert 3 == policies.changed(report)
    assert [{**change, "node": "n:0", "channel": ""}] == policies.changes(report)


def test_settings_have_one_row_per_value() -> None:
    """A setting has one row if all nsqds agree, else one per value; flags alone have none."""

    def one(lag: Any, number: int | None, channels: int = 5) -> dict[str, dict[str, Any]]:
        expected = {"value": lag, "source": "policies" if number else "flags"}
        expected |= {"number": number} if number else {}
        return {
            "max_channel_lag_time": expected,
            "max_channels": {"value": channels, "source": "configured", "number": 1},
            "max_topic_bytes": {"value": 0, "source": "flags"},
        }

    rows = setting_rows(PoliciesFound({"a:1": one("1h0m0s", 2), "b:1": one("0s", None)}))
    assert [
        ("max_channel_lag_time", "1h0m0s", "run time, policy 2", ["a:1"]),
        ("max_channel_lag_time", "0s", "flag", ["b:1"]),
        ("max_channels", 5, "file, policy 1", []),
    ] == [(row["setting"], row["value"], row["source"], row["nodes"]) for row in rows]
    flags = {"max_channels": {"value": 0, "source": "flags"}}
    assert [] == setting_rows(PoliciesFound({"a:1": flags, "b:1": flags}))
