"""`sparq admin export` on three nsqds, one of them dead."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

from tests.tools.admin.conftest import Cluster, Run, assert_dead_nsqd_is_reported


def test_a_topic_is_exported(cluster: Cluster, admin: Run, tmp_path: Path) -> None:
    """JSON lines have unchanged bodies, CSV has no formulas; no file is overwritten."""
    cluster.recreate("clicks", "archive")
    bodies = [b"=1+1", b"\xff\x00", 'grüße\n"x",'.encode(), b"@SUM(A1)"]
    for number, body in enumerate(bodies):
        cluster.nsqds[number % 2].post("/pub?topic=clicks", body)
    lines, table = tmp_path / "lines", tmp_path / "table"

    ran = admin("export", "clicks", f"--output={lines}")
    admin("export", "clicks", "archive", f"--output={table}", "--format=csv")

    assert_dead_nsqd_is_reported(ran, cluster, "export")
    assert f"4 messages of topic clicks to {lines}" in ran.err
    assert "is incomplete" in ran.err
    messages = [json.loads(line) for line in lines.read_text().splitlines()]
    assert ["=1+1", "/wA=", 'grüße\n"x",', "@SUM(A1)"] == [each["body"] for each in messages]
    assert ["text", "base64", "text", "text"] == [each["encoding"] for each in messages]
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert ["'=1+1", "/wA=", 'grüße\n"x",', "'@SUM(A1)"] == [row["body"] for row in rows]
    assert {("clicks", "archive", "waiting")} == {
        (row["topic"], row["channel"], row["state"]) for row in rows
    }
    again = admin("export", "clicks", f"--output={lines}")
    assert (1, 4) == (again.status, len(lines.read_text().splitlines()))
    assert "File exists: nothing was done" in again.err
    assert 0o600 == os.stat(lines).st_mode & 0o777


def test_an_incomplete_export_is_an_error(cluster: Cluster, admin: Run) -> None:
    """An incomplete export ends with status 1."""
    cluster.recreate("orders", messages=1, dead=False)

    assert 0 == admin("export", "orders").status
    ran = admin("export", "orders", "--body-bytes=3")
    assert 1 == ran.status
    assert "2 bodies were cut after 3 bytes" in ran.err
    assert 2 == ran.out.count('"cut": true')
