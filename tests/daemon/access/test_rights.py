"""The table of rights: which grants meet a request's needs."""

from __future__ import annotations

import pytest

from sparq.daemon.access import grants
from sparq.daemon.access.rights import (
    DEBUG,
    OPEN,
    UNLISTED,
    Need,
    Needs,
    of_all,
    of_any,
    of_topic,
)
from sparq.daemon.access.roles import Role


def is_met(needs: Needs, granted: str, **arguments: str) -> bool:
    held = grants.parse(granted)
    return all(need.is_met(held, lambda name: arguments.get(name, "")) for need in needs)


@pytest.mark.parametrize(
    ("granted", "topic", "expected"),
    [
        ("operate", "clicks", True),
        ("operate", "", True),
        ("administer", "clicks", True),  # it includes operate
        ("read", "clicks", False),
        ("operate:clicks*", "clicks2", True),
        ("operate:clicks*", "orders", False),
        ("operate:**", "", False),  # a request without a topic is about all topics
        ("none", "clicks", False),
    ],
)
def test_of_topic_needs_the_role_for_the_topic_of_the_request(
    granted: str, topic: str, expected: bool
) -> None:
    """``of_topic`` needs the role for all topics, or for a pattern that matches the topic."""
    assert expected == is_met(of_topic(Role.OPERATE), granted, topic=topic)


@pytest.mark.parametrize(
    ("granted", "all_topics", "any_topic"),
    [("read", True, True), ("read:t*", False, True), ("none", False, False)],
)
def test_of_all_needs_the_role_for_all_topics_and_of_any_for_one(
    granted: str, all_topics: bool, any_topic: bool
) -> None:
    """``of_all`` needs the role for all topics, ``of_any`` for any; the request's is ignored."""
    assert all_topics == is_met(of_all(Role.READ), granted, topic="t")
    assert any_topic == is_met(of_any(Role.READ), granted, topic="other")


def test_every_need_of_a_row_must_be_met() -> None:
    """A copy needs the role for its source topic and for its target topic."""
    both = (Need(Role.OPERATE, "topic"), Need(Role.OPERATE, "to"))

    assert is_met(both, "operate:a,operate:b", topic="a", to="b")
    assert not is_met(both, "operate:a", topic="a", to="b")
    assert not is_met(both, "operate:b", topic="a", to="b")


def test_open_needs_no_role_and_unlisted_routes_need_administer() -> None:
    """`OPEN` needs no role; unlisted routes and debug routes need `administer` for all topics."""
    assert is_met(OPEN, "none")
    for needs in (UNLISTED, *DEBUG.values()):
        assert is_met(needs, "administer")
        assert not is_met(needs, "operate,publish,consume,register")
        assert not is_met(needs, "administer:t*", topic="t")
