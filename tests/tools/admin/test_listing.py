"""`sparq admin list` and `sparq admin audit`, also while an nsqd is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from sparq.program.verbs import read
from sparq.tools.admin.job import serve as work
from sparq.tools.admin.verbs import PROGRAM, VERBS, AdminOptions
from sparq.tools.commands import ToolError
from sparq.tools.terminal import Pipe
from tests.nsqadmin.cluster import admin as nsqadmin_of
from tests.support.servers import free_port, spawn_nsqd
from tests.support.waiting import until
from tests.tools.admin.conftest import Cluster, OldNsqd, Run, assert_dead_nsqd_is_reported, serving

ENTRIES = [
    {
        **{"time": f"2026-11-23T12:00:{number:02}Z", "user": "ada", "via": "token"},
        **{"action": "delete_channel", "topic": "clicks", "outcome": "done", "detail": "\x1b[2J"},
    }
    for number in range(30, 0, -1)
]
PAGE = 20


class FakeAdmin(OldNsqd):
    """nsqadmin's audit route: 20 entries per page, and a required token."""

    seen: ClassVar[list[dict[str, str]]]
    paths: ClassVar[set[str]]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        self.seen.append(query)
        self.paths.add(url.path)
        begin = int(query.get("before", "0"))
        some = ENTRIES[begin : begin + min(PAGE, int(query["limit"]))]
        following = str(begin + len(some)) if begin + len(some) < len(ENTRIES) else None
        if self.headers["Authorization"] == "Bearer secret":
            self.answer({"entries": some, "next": following})
        else:
            self.answer({"message": "FORBIDDEN"}, 403)


@pytest.fixture
def fake() -> Iterator[str]:
    """The address of a FakeAdmin."""
    FakeAdmin.seen, FakeAdmin.paths = [], set()
    with serving(FakeAdmin) as address:
        yield address


def test_audit_entries_are_shown(fake: str, admin: Run) -> None:
    """All pages are shown, as a table or JSON, with filters and without control characters."""
    flags = (f"--nsqadmin-http-address={fake}", "--token=secret")

    ran = admin("audit", *flags, "--limit=25", "--user=ada", "--action=delete_channel")
    document = admin(
        "audit",
        f"--nsqadmin-http-address=http://{fake}/base/",
        "--token=secret",
        "--json",
    ).document

    assert (0, 26, "\x1b" in ran.out) == (ran.status, len(ran.rows), False)
    assert ["TIME", "USER", "VIA", "REMOTE", "ACTION"] == ran.rows[0][:5]
    assert ["2026-11-23T12:00:30Z", "ada", "token", "-", "delete_channel"] == ran.rows[1][:5]
    asked = {"limit": "25", "user": "ada", "action": "delete_channel"}
    assert [asked, {**asked, "limit": "5", "before": "20"}] == FakeAdmin.seen[:2]
    assert ENTRIES == document["entries"]
    assert {"/api/v2/audit", "/base/api/v2/audit"} == FakeAdmin.paths


def test_audit_without_nsqadmin_or_permission_is_an_error(fake: str, admin: Run) -> None:
    """The error is one line with advice."""
    ran = admin("audit", f"--nsqadmin-http-address={fake}")
    assert 1 == ran.status
    assert "use --token=@FILE with a token that may read" in ran.err
    port = free_port()
    ran = admin("audit", f"--nsqadmin-http-address=127.0.0.1:{port}")
    assert f"nsqadmin 127.0.0.1:{port}: connection refused: start it, or name another" in ran.err
    ran = admin("audit", "--nsqadmin-http-address=nonsense")
    assert (1, "--nsqadmin-http-address not an address" in ran.err) == (ran.status, True)


def test_topics_channels_and_nsqds_are_listed(cluster: Cluster, admin: Run) -> None:
    """Figures are summed over the live nsqds; each list names the dead one."""
    cluster.recreate("clicks", "archive", messages=3)

    topics = admin("list")
    assert 1 == topics.status
    assert ["TOPIC", "CHANNELS", "WAITING", "MESSAGES", "PAUSED", "NSQDS"] == topics.rows[0]
    assert ["clicks", "1", "6", "6", "no", "2"] in topics.rows
    channels = admin("list", "clicks")
    assert ["archive", "no", "consumers", "6"] == channels.rows[1][:4]
    assert ["0", "0", "0", "0", "6", "0", "no", "2"] == channels.rows[1][5:]
    assert_dead_nsqd_is_reported(channels, cluster, "list")
    parts = admin("list", "clicks", "archive")
    figures = [[row[0], row[3]] for row in parts.rows[1:]]
    assert [[address, "3"] for address in cluster.alive] == figures
    nodes = admin("list", "--nodes", "--json")
    rows = {row["address"]: row for row in nodes.document["rows"]}
    assert {*cluster.alive, cluster.dead} == rows.keys()
    assert ("gone", None, "connection refused") == tuple(
        rows[cluster.dead][name] for name in ("state", "topics", "error")
    )
    assert {"up"} == {rows[address]["state"] for address in cluster.alive}
    assert 6 <= sum(rows[address]["waiting"] for address in cluster.alive)


def test_list_as_json(cluster: Cluster, admin: Run) -> None:
    """`--json` has rows by name, and errors; a message's age is a number."""
    cluster.recreate("orders", "c", messages=1, dead=False)

    document = admin("list", "orders", "--json").document

    (row,) = document["rows"]
    assert {} == document["errors"]
    assert ("c", 2, 2, False, 2) == (
        *(row["channel"], row["depth"], row["messages"], row["paused"]),
        row["nsqds"],
    )
    assert ("no consumers", False) == (row["state"], row["topic_paused"])
    assert 0 <= row["lag_seconds"] < 60
    missing = admin("list", "ordres")
    assert 1 == missing.status
    assert "no nsqlookupd knows the topic ordres: did you mean orders?" in missing.err
    flags = [f"--nsqd-http-address={nsqd.http}" for nsqd in cluster.nsqds]
    assert "there is no topic ordres: did you mean" in admin("list", "ordres", *flags).err
    nobody = admin("list", "orders", "--lookupd-http-address=127.0.0.1:1")
    assert "no nsqlookupd answered (127.0.0.1:1: connection refused)" in nobody.err


async def test_a_gone_nsqd_is_dismissed(tmp_path: Path) -> None:
    """nsqadmin no longer shows it; one that answers, or a wrong token or address, is an error."""
    out = (tmp_path / "out").open("wb")

    async def dismiss(*flags: str) -> int:
        request = read(PROGRAM, VERBS, ["dismiss", nsqd.http, *flags], AdminOptions, "")
        return await work(request, asyncio.Event(), Pipe(out.fileno()))

    async def states() -> list[str]:
        await nsqadmin.daemon.services.watch.fresh()
        _, document = await nsqadmin.ask("GET", "/api/v2/nodes")
        return [row["state"] for row in document["rows"]]

    with out, await asyncio.to_thread(spawn_nsqd, tmp_path) as nsqd:
        async with nsqadmin_of(nsqd_http_addresses=(nsqd.http,)) as nsqadmin:
            flag = f"--nsqadmin-http-address={nsqadmin.url}"
            assert ["up"] == await states()
            with pytest.raises(ToolError, match=f'shows no gone nsqd "{nsqd.http}"'):
                await dismiss(flag)
            await asyncio.to_thread(nsqd.kill9)
            assert ["gone"] == await states()
            assert 0 == await dismiss(flag)
            assert [] == await states()
            await asyncio.to_thread(nsqd.start)
            await until(lambda: states_are(states, ["up"]))
        with pytest.raises(ToolError, match="connection refused: start it"):
            await dismiss(flag)
    assert f"dismissed {nsqd.http}\n" == (tmp_path / "out").read_text()


async def states_are(states: Callable[[], Awaitable[list[str]]], expected: list[str]) -> bool:
    return expected == await states()
