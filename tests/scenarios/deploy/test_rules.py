"""The rules of deploy/prometheus: promtool accepts them, and evaluates a case of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.deploy import alerting

HERE = Path(__file__).parent
MONITORING = HERE.parents[2] / "docs" / "monitoring.md"
CASES = {alerting.ALERTS: HERE / "nsq_alerts.yml", alerting.MIXIN: HERE / "nsq_mixin.yml"}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_promtool_accepts_every_file() -> None:
    """promtool accepts each file of rules, and the configuration that names them."""
    for path in sorted(alerting.FOLDER.glob("*.rules.yml")):
        alerting.promtool("check", "rules", path)
    alerting.promtool("check", "config", alerting.CONFIG)


@pytest.mark.parametrize("rules", CASES, ids=lambda path: path.stem)
def test_rules_pass_their_cases(rules: Path, tmp_path: Path) -> None:
    """Alerts fire when they should and only then; recorded series have their values and labels."""
    cases = tmp_path / "cases.yml"
    cases.write_text(text(CASES[rules]).replace("[RULES]", f"['{rules}']"), encoding="utf-8")

    alerting.promtool("test", "rules", cases)


@pytest.mark.parametrize("rules", CASES, ids=lambda path: path.stem)
def test_every_rule_has_a_case(rules: Path) -> None:
    """Each alert has a case in which it fires, each recorded name a case with its value."""
    expected = set(re.findall(r"alertname=\"(\w+)\"[^}]*\}', value", text(CASES[rules])))
    values = set(re.findall(r"labels: '([\w:]+)\{", text(CASES[rules])))

    assert set(alerting.names("alert", rules)) == expected
    assert set(alerting.names("record", rules)) == values - {"ALERTS"}


def test_every_alert_is_documented() -> None:
    """docs/monitoring.md has a row for each alert, with its meaning and what to do."""
    rows = re.findall(r"^\| `(Nsq\w+)` \| ([^|]+) \| ([^|]+) \|$", text(MONITORING), re.M)

    severities = re.findall(r"alert: (\w+)\n.*?severity: (\w+)", text(alerting.ALERTS), re.S)

    assert severities == [(name, meaning.split(".")[0].lower()) for name, meaning, _ in rows]
    assert all(len(meaning) > 40 and len(action) > 20 for _, meaning, action in rows)


def test_every_alert_has_severity_summary_and_action() -> None:
    """Every alert has a severity, a summary with its label or value, and an action."""
    for body in text(alerting.ALERTS).split("- alert: ")[1:]:
        assert len(re.findall(r"labels: \{severity: (page|ticket)\}", body)) == 1, body
        assert re.findall(r"^ +(summary|action): \S", body, re.M) == ["summary", "action"], body
        assert "{{ $labels." in body or "{{ $value" in body, body


def test_rules_query_only_documented_metrics() -> None:
    """Each metric in a rule is in docs/monitoring.md, which names exactly the exposed ones."""

    def metrics(where: str) -> set[str]:
        found = re.findall(r"(?<!:)\b(?:nsqd|nsqlookupd|nsqadmin)_\w+", where)
        return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}

    assert metrics(text(alerting.ALERTS) + text(alerting.MIXIN)) <= metrics(text(MONITORING))
