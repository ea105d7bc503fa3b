"""Dead letters: their original topic, and whether they were sent back."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from sparq.cluster.fleet import Fleet
from sparq.daemon.access.audit import AuditEntry, AuditLog
from sparq.nsqadmin import dead_letters
from sparq.nsqadmin.dead_letters import DeadLetterList, sent_in


def test_only_completed_copies_and_redrives_count() -> None:
    """Only entries with the outcome done and complete arguments count, the newest per message."""
    ids = {"a:1": ["1"]}
    copied, finished = {"action": "copy_message"}, {"action": "finish_message"}
    entries = [
        {**finished, "outcome": "done", "arguments": {"ids": ids}, "time": "4"},
        {**copied, "outcome": "failed", "arguments": {"ids": {"a:1": ["0"]}}, "time": "3"},
        {"action": "redrive_message", "outcome": "done", "arguments": {"ids": ids}, "time": "2"},
        {**copied, "outcome": "done", "arguments": {"ids": ids}, "time": "1"},
        {**copied, "outcome": "done", "arguments": "{cut..."},
    ]
    assert {"a:1/1": "2"} == sent_in(entries)


async def record(audit: AuditLog, action: str, topic: str, number: int) -> None:
    """Record that one letter was sent back; the number is its id."""
    arguments = {"ids": {"a:1": [str(number)]}}
    entry = AuditEntry("me", "token", "", action, "done", topic, arguments=arguments)
    await audit.record(entry)


async def test_all_pages_of_the_audit_log_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters on later pages of the audit log count as sent, too; at most `LETTERS_MAX` do."""
    monkeypatch.setattr(dead_letters, "ENTRIES_MAX", 2)
    audit = AuditLog()
    for number, action in enumerate(("copy_message", "redrive_message", "copy_message") * 2):
        await record(audit, action, "o.dead", number)
        await record(audit, action, "other.dead", number)
    letters = DeadLetterList(create_autospec(Fleet, instance=True), audit)

    expected = [f"a:1/{number}" for number in (5, 4, 3, 2, 1, 0)]
    assert expected == [*await letters.sent("o.dead")]

    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 3)
    assert expected[:4] == [*await letters.sent("o.dead")]
