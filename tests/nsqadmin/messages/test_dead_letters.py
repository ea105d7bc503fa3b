"""Dead letters: their original topic, and whether they were sent back."""

from __future__ import annotations

import pytest

from sparq.nsqadmin.messages.dead_letters import origin, sent_in


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders.dead", "orders"),
        ("orders-dlq", "orders"),
        ("a_b_dead_letters", "a_b"),
        ("Orders.FAILED#ephemeral", "Orders"),
        ("orders", ""),
        (".dead", ""),
    ],
)
def test_the_original_topic_follows_from_the_name(topic: str, expected: str) -> None:
    """The original topic is the name without a suffix such as .dead or -dlq, else ""."""
    assert expected == origin(topic)


def test_only_completed_copies_count() -> None:
    """Only entries with the outcome done and complete arguments count, the newest per message."""
    ids = {"a:1": ["1"]}
    entries = [
        {"outcome": "failed", "arguments": {"ids": {"a:1": ["0"]}}, "time": "3"},
        {"outcome": "done", "arguments": {"ids": ids}, "time": "2"},
        {"outcome": "done", "arguments": {"ids": ids}, "time": "1"},
        {"outcome": "done", "arguments": "{cut..."},
    ]
    assert {"a:1/1": "2"} == sent_in(entries)
