"""The rules of deploy/prometheus: promtool accepts them, and evaluates a case of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
MONITORING = ROOT / "docs" / "monitoring.md"
CASES = {
    FOLDER / "nsq.rules.yml": HERE / "nsq_alerts.yml",
    FOLDER / "nsq_mixin.rules.yml": HERE / "nsq_mixin.yml",
    FOLDER / "pipeline.rules.yml": HERE / "pipeline_alerts.yml",
}
EXPECTED = re.compile(r"alertname(?:=\"|: )(\w+)(?:\"[^}]*\}', value|\n +exp_alerts:\n)")
"""An alert that a case expects to fire."""

each_file = pytest.mark.parametrize("rules", CASES, ids=lambda path: path.stem)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def promtool(*words: str | Path) -> None:
    """Run promtool, which must succeed."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("needs prometheus (apt-get install prometheus)")
    command = [found, *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def names(kind: str, path: Path) -> list[str]:
    """The names of all alerts (`alert`) or recording rules (`record`) in a file."""
    return re.findall(rf"\b{kind}: ([\w:]+)", text(path))


def test_promtool_accepts_the_configuration() -> None:
    """promtool accepts the configuration that names the files of rules."""
    promtool("check", "config", FOLDER / "prometheus.yml")


@each_file
def test_rules_pass_their_cases(rules: Path, tmp_path: Path) -> None:
    """Alerts fire when they should and only then; recorded series have their values and labels."""
    cases = tmp_path / "cases.yml"
    cases.write_text(text(CASES[rules]).replace("[RULES]", f"['{rules}']"), encoding="utf-8")

    promtool("check", "rules", rules)
    promtool("test", "rules", cases)


@each_file
def test_every_rule_has_a_case(rules: Path) -> None:
    """Each alert has a case in which it fires, each recorded name a case with its value."""
    expected = set(EXPECTED.findall(text(CASES[rules])))
    values = set(re.findall(r"labels: '([\w:]+)\{", text(CASES[rules])))

    assert {*CASES} == {*FOLDER.glob("*.rules.yml")}
    assert set(names("alert", rules)) == expected
    assert set(names("record", rules)) == values - {"ALERTS"}


def test_every_alert_of_the_daemons_is_documented() -> None:
    """docs/monitoring.md has a row for each alert, with its meaning and what to do."""
    rows = re.findall(r"^\| `(Nsq\w+)` \| ([^|]+) \| ([^|]+) \|$", text(MONITORING), re.M)
    alerts = text(FOLDER / "nsq.rules.yml")

    severities = re.findall(r"alert: (\w+)\n.*?severity: (\w+)", alerts, re.S)

    assert severities == [(name, meaning.split(".")[0].lower()) for name, meaning, _ in rows]
    assert all(len(meaning) > 40 and len(action) > 20 for _, meaning, action in rows)


@each_file
def test_every_alert_has_severity_summary_and_action(rules: Path) -> None:
    """Every alert has a severity, a summary with its label or value, and an action."""
    for body in text(rules).split("- alert: ")[1:]:
        assert len(re.findall(r"labels: \{severity: (page|ticket)\}", body)) == 1, body
        assert re.findall(r"^ +(summary|action): \S", body, re.M) == ["summary", "action"], body
        assert "{{ $labels." in body or "{{ $value" in body, body


@each_file
def test_rules_query_only_documented_metrics(rules: Path) -> None:
    """Each metric in a rule is in docs/monitoring.md, which names exactly the exposed ones."""

    def metrics(where: str) -> set[str]:
        found = re.findall(r"(?<!:)\b(?:nsqd|nsqlookupd|nsqadmin|sparq_query)_\w+", where)
        return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}

    assert metrics(text(rules)) <= metrics(text(MONITORING))
