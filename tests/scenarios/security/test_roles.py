"""A-3: with a token file, each route and V2 command requires a role for its topic.

Requests without it change nothing, reveal nothing, and are recorded.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from sparq.daemon.access import tokens
from sparq.daemon.http import Route
from sparq.protocol import commands as c
from tests.nsqd import daemon as daemons
from tests.scenarios.security.test_http_access import DAEMONS, ask, body_of, nsqd, target_of
from tests.support.v2_client import AsyncV2Client, Closed

INCLUDED: Final = {
    "read": {"find", "read"},
    "bodies": {"find", "read", "bodies"},
    "operate": {"find", "read", "operate"},
    "administer": {"find", "read", "operate", "administer"},
    "publish": {"find", "publish"},
    "consume": {"find", "read", "bodies", "consume"},
    "register": {"find"},
}
"""The roles that each role includes; "find" cannot be granted by name."""

TEXT: Final = (Path(__file__).parents[3] / "docs" / "access.md").read_text(encoding="utf-8")
HEAD: Final = "| role | for | effect | nsqd | nsqlookupd |"
COLUMN: Final = {"nsqd": 3, "nsqlookupd": 4}
ROUTE: Final = re.compile(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`")
COMMAND: Final = re.compile(r"\b(?:[A-Z]?PUB|SUB|ATTACH|ENDS|READ|COMMIT)\b")

COMMANDS: Final = {
    "PUB": c.pub("t", b"x"),
    "MPUB": c.mpub("t", [b"x"]),
    "DPUB": c.dpub("t", 5, b"x"),
    "SUB": c.sub("t", "c"),
    "ATTACH": c.attach("t", "new"),
    "ENDS": c.ends("t"),
    "READ": c.read("t", "00", 0, 1, 9),
    "COMMIT": c.commit("t", "c", 1, 1),
}
"""Each V2 command that concerns a topic."""

Needs = list[tuple[str, str]]
"""Pairs of a role and the topics it is needed for, in the words of docs/access.md."""


def documented(daemon: str) -> dict[str, Needs]:
    """Return what the table in docs/access.md says that each route and command needs."""
    found: dict[str, Needs] = {}
    for line in TEXT.split(HEAD)[1].split("\n\n")[0].splitlines()[2:]:
        row = [cell.strip() for cell in line[1:-1].split("|")]
        cell = re.sub(r"and a `POST /channel/seek`.*", "", row[COLUMN[daemon]])
        roles, topics = row[0].replace("`", "").split(", "), row[1].split(", ")
        needs = [] if roles == ["none"] else list(zip(roles, topics, strict=True))
        names = [*ROUTE.findall(cell), *COMMAND.findall(ROUTE.sub("", cell))]
        assert not found.keys() & set(names)
        found |= dict.fromkeys(names, needs)
    return found


class Holder(NamedTuple):
    """A user: the token, and the roles for the topic and for all topics."""

    name: str
    shown: str
    here: frozenset[str] = frozenset()
    everywhere: frozenset[str] = frozenset()


class File:
    """A token file with each role for all, matching and other topics, and with invalid tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holders: list[Holder] = []
        self._lines: list[str] = []
        for word, contained in INCLUDED.items():
            roles = frozenset(contained)
            self._add(f"{word}-all", word, roles, roles)
            self._add(f"{word}-here", f"{word}:t*", roles, frozenset())
            # Any role for any topic permits finding nsqds.
            self._add(f"{word}-there", f"{word}:other*")
        self._add("everything", ",".join(INCLUDED), *[frozenset().union(*INCLUDED.values())] * 2)
        self._add("none", "none")
        self._add("expired", ",".join(INCLUDED), last_day="2020-01-01")
        self.revoked, _ = tokens.make("revoked", "administer")
        self.holders += [
            Holder("nobody", ""),
            Holder("wrong", tokens.make("wrong", "administer")[0]),
            Holder("revoked", self.revoked),
        ]
        self.write()

    def _add(
        self,
        name: str,
        granted: str,
        here: frozenset[str] = frozenset(),
        everywhere: frozenset[str] = frozenset(),
        last_day: str = "",
    ) -> None:
        token, line = tokens.make(name, granted, last_day)
        self._lines.append(line)
        self.holders.append(Holder(name, token, here, everywhere))

    def write(self, *more: str) -> None:
        """Write the lines, and further ones."""
        self.path.write_text("\n".join([*self._lines, *more]))

    def revoke(self, read_again: Callable[[], object]) -> None:
        """Make a token valid, and then invalid again."""
        self.write(f"revoked administer {tokens.digest(self.revoked).hex()}")
        read_again()
        self.write()
        read_again()


def needs_of(daemon: str, route: Route) -> Needs:
    """Return what a route needs; one that the table does not list needs `administer`."""
    return documented(daemon).get(f"{route.method} {route.path}", [("administer", "all topics")])


def may(holder: Holder, needs: Needs) -> bool:
    """Whether the request must not be refused."""
    for role, topics in needs:
        if (role, topics) == ("any", "any topic"):
            allowed = holder.name.endswith(("-all", "-here", "-there", "everything"))
        elif topics == "all topics":
            allowed = role in holder.everywhere
        else:
            allowed = {"any": "find"}.get(role, role) in holder.here
        if not allowed:
            return False
    return True


def header_of(holder: Holder) -> list[str]:
    """Return the holder's Authorization header."""
    return [f"Authorization: Bearer {holder.shown}"] if holder.shown else []


def target(daemon_name: str, method: str, path: str) -> str:
    """Return the route's URL with arguments that would have an effect."""
    text = target_of(Route(method, path, lambda _call: None)).partition("&token=")[0]
    if path == "/message/copy":
        text = text.replace("to=earliest", "to=t2")
    return text + "&id=0400000000000001" if daemon_name == "nsqd" else text


@pytest.fixture
def file(tmp_path: Path) -> File:
    """The token file."""
    return File(tmp_path / "tokens")


@DAEMONS
async def test_every_route_requires_its_role(daemon: Any, tmp_path: Path, file: File) -> None:
    """Without the role that docs/access.md names, requests get 401 or 403, and change nothing.

    With it, the same requests succeed: the test could have failed.
    """
    options = {"token_file": str(file.path), "audit_file": str(tmp_path / "audit")}
    async with daemon(tmp_path, **options) as served:
        file.revoke(served.reload)
        before = await served.state()
        for allowed in (False, True):
            for route in served.routes:
                needs = needs_of(daemon.__name__, route)
                path = target(daemon.__name__, route.method, route.path)
                for holder in file.holders:
                    if may(holder, needs) is not allowed:
                        continue
                    shown = header_of(holder)
                    status = await ask(served, route.method, path, shown, body_of(route))
                    has_token = holder.name not in ("nobody", "wrong", "revoked", "expired")
                    refused = {403} if has_token else {401}
                    assert (status not in (401, 403)) if allowed else status in refused, (
                        route.path,
                        holder.name,
                    )
            if not allowed:
                assert before == await served.state()
                audit = (tmp_path / "audit").read_text()
                assert "nsq_" not in audit
                assert '"outcome":"done"' not in audit
        assert before != await served.state()


async def test_only_administer_lets_a_channel_lose_messages(tmp_path: Path) -> None:
    """No request of all weaker roles together makes a channel lose a message, whatever it asks."""
    token, line = tokens.make("all-others", ",".join(set(INCLUDED) - {"administer"}))
    boss, administer = tokens.make("boss", "administer")
    (tmp_path / "tokens").write_text(f"{line}\n{administer}\n")
    async with nsqd(tmp_path, token_file=str(tmp_path / "tokens")) as served:
        daemon = daemons.running[-1]
        channel = daemon.nsqd.broker.topics["t"].channels["c"]
        log = channel.stream.log
        before = channel.depth()
        assert before
        ids = [f"{daemon.nsqd.broker.node_id << 54 | log.first_index + n:016x}" for n in range(9)]
        for route in served.routes:
            if route.method == "GET":
                continue
            for to in ("earliest", "latest", "last:1", "-1ms", str(log.written_end - 1), "t2"):
                path = target_of(route).replace("to=earliest", f"to={to}")
                body = json.dumps({"ids": ids}).encode()
                await ask(served, route.method, path, header_of(Holder("", token)), body)
                held = channel.depth() + channel.in_flight.count
                assert held >= before, (route.path, to)
        assert daemon.nsqd.broker.topics["t"].channels["c"] is channel

        path = "/channel/seek?topic=t&channel=c&to=latest"
        assert 403 == await ask(served, "POST", path, header_of(Holder("", token)))
        assert 409 == await ask(
            served, "POST", f"{path}&may_skip=false", header_of(Holder("", boss))
        )
        assert channel.depth() >= before
        assert 200 == await ask(served, "POST", path, header_of(Holder("", boss)))
        assert 0 == channel.depth()


@DAEMONS
async def test_the_table_lists_routes_that_exist(daemon: Any, tmp_path: Path) -> None:
    """Each route and V2 command in the table of docs/access.md exists."""
    async with daemon(tmp_path) as served:
        known = {f"{route.method} {route.path}" for route in served.routes}
        assert documented(daemon.__name__).keys() - known - COMMANDS.keys() == set()


async def talk(address: str, *said: bytes) -> list[str]:
    """Send commands one at a time; return the answers until nsqd disconnects."""
    client = await AsyncV2Client.connect(address)
    answers = []
    with contextlib.suppress(Closed):
        for words in said:
            _, data = await client.ask(words)
            answers.append(data.decode("latin-1"))
    client.writer.close()
    return answers


def answer_to(holder: Holder, name: str, role: str) -> str:
    """Return the error that a command must get; "" if it is allowed."""
    if not holder.shown:
        return f"E_AUTH_FIRST AUTH required before {name}"
    if holder.name in ("wrong", "revoked", "expired"):
        return "E_AUTH_FAILED AUTH failed"
    if not holder.name.startswith(("publish", "consume", "everything")):
        return "E_UNAUTHORIZED AUTH no authorizations found"
    if role in holder.here:
        return ""
    channel = "" if role == "publish" or name in ("ENDS", "READ") else "c"
    channel = "new" if name == "ATTACH" else channel
    if name in ("ENDS", "READ"):
        channel = ""
    return f'E_UNAUTHORIZED AUTH failed for {name} on "t" "{channel}"'


async def test_every_command_requires_its_role(tmp_path: Path, file: File) -> None:
    """Without its role, a V2 command gets NSQ's AUTH errors and no effect; with it, it works."""
    options = {"token_file": str(file.path), "audit_file": str(tmp_path / "audit")}
    refused = 0
    async with nsqd(tmp_path, **options) as served:
        file.revoke(served.reload)
        address = daemons.running[-1].tcp
        before = await served.state()
        needs = documented("nsqd")
        for name, command in COMMANDS.items():
            [(role, _)] = needs[name]
            for holder in file.holders:
                if wanted := answer_to(holder, name, role):
                    refused += 1
                    auth = [c.auth(holder.shown.encode())] if holder.shown else []
                    assert wanted == (await talk(address, *auth, command))[-1], (name, holder.name)
        assert before == await served.state()
        for name, command in COMMANDS.items():
            [(role, _)] = needs[name]
            for holder in file.holders:
                if not answer_to(holder, name, role):
                    answers = await talk(address, c.auth(holder.shown.encode()), command)
                    assert len(answers) == 2, (name, answers)
                    assert not answers[1].startswith(("E_AUTH", "E_UNAUTH")), (name, answers)
        assert before != await served.state()
        assert refused == sum(daemons.running[-1].nsqd.access.refused.values())
    audit = (tmp_path / "audit").read_text()
    assert "nsq_" not in audit
    assert {"PUB", "MPUB", "DPUB", "SUB", "READ", "AUTH"} <= {
        json.loads(line)["action"] for line in audit.splitlines()
    }
