"""The table of roles in docs/access.md is the tables of rights of nsqd and nsqlookupd."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparq.daemon.access.rights import ALL_TOPICS, ANY_TOPIC, DEBUG, Need, Needs, Rights
from sparq.daemon.access.roles import NO_ROLE, WORDS, Role
from sparq.nsqd import rights
from sparq.nsqlookupd import http

TEXT = (Path(__file__).parents[3] / "docs" / "access.md").read_text(encoding="utf-8")
HEAD = "| role | for | effect | nsqd | nsqlookupd |"
ROUTE = re.compile(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`")
COMMAND = re.compile(r"\b(?:[A-Z]?PUB|SUB|ATTACH|ENDS|READ|COMMIT)\b")
ROLES = {**WORDS, NO_ROLE: Role.NONE, "any": Role.FIND}
TOPICS = {
    "the topic": "topic",
    "the topic `to`": "to",
    "all topics": ALL_TOPICS,
    "any topic": ANY_TOPIC,
}


def rows() -> list[list[str]]:
    """The cells of the table."""
    table = TEXT.split(HEAD)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]


def needs_of(role: str, topics: str) -> Needs:
    """What a row says about its routes."""
    if role == NO_ROLE:
        return ()
    pairs = zip(role.replace("`", "").split(", "), topics.split(", "), strict=True)
    return tuple(Need(ROLES[word], TOPICS[scope]) for word, scope in pairs)


def documented(column: int) -> Mapping[tuple[str, str], Needs]:
    """Each route in a column of the table; a route occurs once, apart from a seek that skips."""
    found: dict[tuple[str, str], Needs] = {}
    for row in rows():
        if row[0] == "`register`":
            continue
        cell = re.sub(r"and a `POST /channel/seek`.*", "", row[column])
        for route in ROUTE.findall(cell):
            method, _, path = route.partition(" ")
            assert (method, path) not in found
            found[method, path] = needs_of(*row[:2])
        if "`/debug/pprof/`" in cell:
            found |= dict.fromkeys(DEBUG, needs_of(*row[:2]))
    return found


@pytest.mark.parametrize(("column", "table"), [(3, rights.RIGHTS), (4, http.RIGHTS)])
def test_each_route_has_its_role_in_the_docs(column: int, table: Rights) -> None:
    """A new route needs a place in the table, by its effect."""
    assert documented(column) == dict(table)


def test_each_command_has_its_role_in_the_docs() -> None:
    """The V2 commands with a topic."""
    found = {
        command.encode(): ROLES[row[0].strip("`")]
        for row in rows()
        for command in COMMAND.findall(ROUTE.sub("", row[3]))
    }
    assert found == {name: role for name, role in rights.COMMANDS.items() if role is not Role.NONE}
