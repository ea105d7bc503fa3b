"""cluster.nodes: one node as nsqlookupds list it, and lists of nodes merged."""

from __future__ import annotations

import pytest

from sparq.cluster.fleet import given_node, merged, read_node, version_of
from tests.cluster.peers import listed


@pytest.mark.parametrize(
    ("at", "address"),
    [
        ("a:1", "a:1"),
        ("[::1]:4151", "[::1]:4151"),
        ("http://a", "a:80"),
        ("https://a/b/", "a:443"),
        ("http://[::1]:2/", "[::1]:2"),
    ],
)
def test_a_configured_node_has_a_normalised_address(at: str, address: str) -> None:
    """A configured node has a normalised address before it answers, and is called as configured."""
    node = given_node(at)

    assert (address, at) == (node.address, node.at)
    assert read_node({}, at) == node


def test_versions_compare_by_number() -> None:
    """Versions compare by number; a release is above its candidates, an invalid one lowest."""
    texts = ["1.10.0", "1.3.0", "1.3.0-rc.1", "1.2.9", "", "nonsense"]
    expected = ["1.10.0", "1.3.0", "1.3.0-rc.1", "1.2.9"]

    assert expected == sorted(texts, key=version_of, reverse=True)[:4]


def test_nodes_below_the_highest_version_are_out_of_date() -> None:
    """Nodes below the highest version are out of date."""
    nodes = listed(("a", 1), ("b", 2))["producers"]
    nodes = [
        read_node({**one, "version": v}) for one, v in zip(nodes, ("1.3.0", "1.2.0"), strict=True)
    ]
    found = merged([("l", [node for node in nodes if node])])

    assert [("a:1", False), ("b:2", True)] == [(node.address, node.out_of_date) for node in found]
