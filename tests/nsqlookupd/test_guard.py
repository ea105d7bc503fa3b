"""nsqlookupd's limits for peers: broadcast addresses and connections."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.nsqlookupd.guard import Guard
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.lifecycle import StartError

PORTS = (4150, 4151)


def guard(*allowed: str, **options: Any) -> Guard:
    return Guard(NsqlookupdOptions(allow_broadcast_addresses=allowed, **options))


@pytest.mark.parametrize(
    ("rule", "address", "allowed"),
    [
        ("peer", "10.0.0.7", True),
        ("peer", "::ffff:10.0.0.7", True),
        ("peer", "10.0.0.8", False),
        ("peer", "here.example", False),
        ("peer", "", False),
        ("10.0.0.9", "10.0.0.9", True),
        ("10.0.0.9", "10.0.0.90", False),
        ("10.0.0.0/30", "10.0.0.3", True),
        ("10.0.0.0/30", "10.0.0.4", False),
        ("10.0.0.0/30", "0xa000003", False),
        ("::1", "[::1]", True),
        ("fe80::/10", "fe80::1", True),
        ("fe80::/10", "10.0.0.7", False),
        ("nsqd-1.example", "NSQD-1.example.", True),
        ("nsqd-1.example", "nsqd-1.example.evil", False),
        ("nsqd-1.example", "nsqd-1.example\0", False),
        ("*.example", "a.b.example", True),
        ("*.example", "example", False),
        ("*.example", "aexample", False),
        ("*.example", "evil/.example", False),
        ("*.example", "user@evil#.example", False),
        ("*.example", "..example", False),
    ],
)
def test_a_broadcast_address_must_match_a_rule(rule: str, address: str, allowed: bool) -> None:
    """A broadcast address must match a rule, without name resolution; without rules any may."""
    assert allowed == guard(rule).may_claim(address, PORTS, "10.0.0.7")
    assert guard().may_claim(address, (0, 1 << 40), "10.0.0.7")


def test_with_rules_ports_must_be_from_1_to_65535() -> None:
    """With rules, ports must be from 1 to 65535."""
    for ports in ((0, 1), (1, 65536), (-1, 1)):
        assert not guard("peer").may_claim("10.0.0.7", ports, "10.0.0.7")


def test_a_peer_on_a_unix_socket_never_matches_the_rule_peer() -> None:
    """A peer on a unix socket never matches the rule "peer", but may match others."""
    assert not guard("peer").may_claim("", PORTS, "")
    assert guard("peer", "here.example").may_claim("here.example", PORTS, "")


@pytest.mark.parametrize("text", ["", "*", "*.", "10.0.0.0/33", "a/b", "a.*.b"])
def test_an_invalid_rule_is_a_start_error(text: str) -> None:
    """An invalid rule is a StartError, so that a misspelling does not allow all or none."""
    with pytest.raises(StartError, match="--allow-broadcast-address"):
        guard(text)


def test_connections_are_limited_in_total_and_per_address() -> None:
    """Connections are limited in total and, except on unix sockets, per address."""
    limited = guard(max_connections=3, max_connections_per_address=2)
    assert [True, True, False] == [limited.admit("a") for _ in range(3)]
    assert [True, False] == [limited.admit("b") for _ in range(2)]
    limited.forget("a")
    assert [True, False] == [limited.admit("b"), limited.admit("c")]
    alike = guard(max_connections_per_address=1)
    assert [True, True] == [alike.admit("") for _ in range(2)]
