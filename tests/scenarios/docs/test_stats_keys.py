"""docs/http.md names every key of `/stats`, with the object that has it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sparq.broker.latency import Latency
from sparq.broker.stats import ChannelStats, ClientStats, TopicStats

PAGE = Path(__file__).parents[3] / "docs/http.md"

DETAILS_OF_TLS = {
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
}
"""The page calls them the details of `tls`."""

FIGURES = {
    "topic": TopicStats,
    "channel": ChannelStats,
    "client": ClientStats,
    "`e2e_processing_latency`": Latency,
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page, without the table's head."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2]
    table = re.findall(r"^\| (.*) \|$", section.partition("\n### ")[0], re.M)
    return [row.split(" | ") for row in table[1:]]


def documented() -> dict[str, set[str]]:
    """The keys that the page names, by the object that has them."""
    found: dict[str, set[str]] = {}
    for owner, keys in rows("`/stats` as NSQ has it"):
        # What is in parentheses explains the key before it.
        names = re.sub(r"\([^)]*\)", "", keys).partition(":")[0]
        found[owner] = set(re.findall(r"`(\w+)`", names))
    for keys, owner, _ in rows("`/stats` beyond NSQ"):
        found[owner].update(re.findall(r"`(\w+)`", keys))
    return found


@pytest.mark.parametrize("owner", FIGURES)
def test_every_key_of_an_object_is_documented(owner: str) -> None:
    """The page names the fields of the object's statistics, and no others."""
    keys = {field.name for field in fields(FIGURES[owner])} - DETAILS_OF_TLS

    assert documented()[owner] == keys, f"docs/http.md: the tables of /stats, rows of {owner}"
