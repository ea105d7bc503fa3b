"""The rules of deploy/prometheus: promtool accepts them, and evaluates a case of each.

test_alerts.py tests that each alert fires for real causes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparq.nsqadmin.dead_letters import origin
from tests.scenarios.deploy import alerting

HERE = Path(__file__).parent
MONITORING = HERE.parents[2] / "docs" / "monitoring.md"
CASES = {alerting.ALERTS: HERE / "nsq_alerts.yml", alerting.MIXIN: HERE / "nsq_mixin.yml"}
NAMES_OF_THE_MIXIN = {
    *("nsq_topic_message_count", "nsq_topic_message_bytes", "nsq_topic_depth"),
    *("nsq_topic_backend_depth", "nsq_topic_e2e_processing_latency_99"),
    *("nsq_topic_channel_message_count", "nsq_topic_channel_depth"),
    *("nsq_topic_channel_backend_depth", "nsq_topic_channel_in_flight_count"),
    *("nsq_topic_channel_requeue_count", "nsq_topic_channel_timeout_count"),
    *("nsq_topic_channel_deferred_count", "nsq_topic_channel_clients"),
    "nsq_topic_channel_e2e_processing_latency_99",
    *("nsq_mem_heap_objects", "nsq_mem_heap_in_use_bytes"),
}
"""The names in the dashboards of grafana/jsonnet-libs' nsq-mixin, except the Go collector's."""
GIVEN_UP = ("orders.dead", "a-dlq", "a_DLQ", "a.dead-letters", "a_deadletter", "b.failed#ephemeral")
NOT_GIVEN_UP = ("orders", "deadlines", "dead", "a.dead.b", "failed", "undead")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_promtool_accepts_every_file() -> None:
    """promtool accepts each file of rules, and the configuration that names them."""
    for path in sorted(alerting.FOLDER.glob("*.rules.yml")):
        alerting.promtool("check", "rules", path)
    alerting.promtool("check", "config", alerting.CONFIG)


def test_the_pages_command_checks_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in docs/monitoring.md checks the files."""
    monkeypatch.chdir(alerting.FOLDER.parents[1])
    (words,) = re.findall(r"^\$ promtool (.*)$", text(MONITORING), re.M)

    assert alerting.promtool(*words.split()).count("SUCCESS") == 2


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


def test_the_mixins_names_are_recorded() -> None:
    """The recorded names are exactly those that the known dashboards use."""
    assert sorted(NAMES_OF_THE_MIXIN) == sorted(alerting.names("record", alerting.MIXIN))


def test_with_minutes_as_seconds_changes_nothing_else() -> None:
    """Only the lengths of minutes change: expressions are those of deploy/prometheus."""
    for path in CASES:
        before, after = text(path), alerting.with_minutes_as_seconds(text(path))
        changed = [
            pair
            for pair in zip(before.splitlines(), after.splitlines(), strict=True)
            if pair[0] != pair[1]
        ]
        assert len(before.splitlines()) == len(after.splitlines())
        for old, new in changed:
            assert re.sub(r"\d+m\b|\* 60", "", old) == re.sub(r"\d+s\b|\* 1", "", new)
        assert not re.search(r"\[\d+[mh]\]|for: \d+[mh]|offset \d+[mh]", after)
    assert "[15s]) >= 3" in alerting.with_minutes_as_seconds("changes(x[15m]) >= 3")
    assert "rate10m > 15 * 1" == alerting.with_minutes_as_seconds("rate10m > 15 * 60")


def test_alert_and_nsqadmin_agree_on_dead_letter_topics() -> None:
    """The alert and nsqadmin's page recognise the same topics as dead-letter topics."""
    (pattern,) = set(re.findall(r'topic=~"\(\?i\)([^"]+)"', text(alerting.ALERTS)))
    found = re.compile(pattern, re.IGNORECASE)

    for name in (*GIVEN_UP, *NOT_GIVEN_UP):
        assert bool(origin(name)) == bool(found.fullmatch(name)) == (name in GIVEN_UP), name


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
