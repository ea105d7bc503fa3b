"""`sparq admin seek` on three nsqds, one of them dead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from tests.tools.admin.conftest import Cluster, OldNsqd, Run


class FaultySeek(OldNsqd):
    """An nsqd whose answers to a seek have a figure that no nsqd can have."""

    skipped: Any = 0
    seeks: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).seeks.append(self.path)
        self.answer({"again": 0, "waiting": 0, "skipped": self.skipped})


@pytest.fixture(params=[-1, 10**30, "3", None, float("nan"), float("inf"), 1.5, True])
def faulty(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """The address of a FaultySeek, and the requests that it gets."""
    seeks: list[str] = []
    handler = type("Faulty", (FaultySeek,), {"skipped": request.param, "seeks": seeks})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"127.0.0.1:{server.server_port}", seeks
        server.shutdown()
        serving.join()


def waiting(cluster: Cluster) -> list[int]:
    return cluster.depths("clicks", "archive")


def test_seek_reports_each_nsqds_position(cluster: Cluster, admin: Run) -> None:
    """`seek` shows each nsqd's new position and returning messages; the dead nsqd is named."""
    cluster.recreate("clicks", "archive")
    # Messages stay in the log while any channel needs them.
    cluster.post("/channel/create?topic=clicks&channel=keeper")
    cluster.post("/mpub?topic=clicks", b"1\n2\n3")
    cluster.nsqds[0].post("/channel/empty?topic=clicks&channel=archive")

    dry = admin("seek", "clicks", "archive", "earliest", "--dry-run")
    assert [0, 3] == waiting(cluster)
    assert (1, "dry run: would move channel archive of topic clicks to earliest") == (
        *(dry.status, dry.out.splitlines()[0]),
    )
    ran = admin("seek", "clicks", "archive", "earliest")
    assert [3, 3] == waiting(cluster)
    assert (1, "moved in part: channel archive of topic clicks to earliest") == (
        *(ran.status, ran.out.splitlines()[0]),
    )
    rows = {row[0]: row[-3:] for row in ran.rows if row}
    assert ["3", "0", "3"] == rows[cluster.nsqds[0].http]
    assert ["0", "0", "3"] == rows[cluster.nsqds[1].http]
    assert f"{cluster.dead}: connection refused" in ran.out
    assert f"sparq admin seek clicks archive earliest --nsqd-http-address={cluster.dead}" in ran.out


def test_skipping_messages_requires_yes(cluster: Cluster, admin: Run) -> None:
    """Without a terminal nothing is done unless `--yes` is given."""
    cluster.recreate("clicks", "archive", messages=3)

    ran = admin("seek", "clicks", "archive", "latest")
    assert (1, [3, 3]) == (ran.status, waiting(cluster))
    assert (
        "this skips 6 messages of channel archive of topic clicks: not confirmed, nothing was done"
        in ran.err
    )
    ran = admin("seek", "clicks", "archive", "latest", "--yes", "--json")
    assert [0, 0] == waiting(cluster)
    assert ("partly", [3, 3]) == (
        *(ran.document["result"], [row["skipped"] for row in ran.document["rows"]]),
    )


def test_a_node_with_impossible_figures_is_named_and_not_moved(
    cluster: Cluster, admin: Run, faulty: tuple[str, list[str]]
) -> None:
    """Counted as 0, its skipped messages would need no confirmation; the others are moved."""
    cluster.recreate("clicks", "archive", messages=1, dead=False)
    address, seeks = faulty
    good = cluster.nsqds[0]
    flags = [f"--nsqd-http-address={at}" for at in (good.http, address)]

    ran = admin("seek", "clicks", "archive", "earliest", *flags)

    assert 1 == ran.status
    assert f"{address}: unreadable answer: " in ran.out
    assert [good.http] == [row[0] for row in ran.rows if row and row[0] == good.http]
    assert 1 == len(seeks)
    assert "dry_run=true" in seeks[0]
