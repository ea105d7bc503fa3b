"""`sparq admin seek` on three nsqds, one of them dead."""

from __future__ import annotations

from tests.tools.admin.conftest import Cluster, Run


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
