"""`sparq run` with a real access log: the report's numbers equal an independent count."""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sparq.pipeline.enrich import kind, robot
from tests.pipeline import plain
from tests.support.run_program import run_program

ACCESS_LOG = Path(__file__).parents[4] / "shared" / "data" / "access.log"
RUN_SECONDS = 900

pytestmark = [
    pytest.mark.skipif(not ACCESS_LOG.exists(), reason="needs the sample log"),
    pytest.mark.timeout(RUN_SECONDS + 60),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run with the gzipped log; return the data folder and the printed report."""
    folder = tmp_path_factory.mktemp("run")
    log = folder / "access.log.gz"
    log.write_bytes(gzip.compress(ACCESS_LOG.read_bytes()))
    data = folder / "data"
    command = [sys.executable, "-m", "sparq.cli", "run", "--clicks", log, "--data", data]
    done = run_program(command, seconds=RUN_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return data, done.stdout


@pytest.fixture(scope="module")
def counted():
    """The clicks of the log, and the unreadable lines."""
    clicks, unreadable = [], []
    for line in ACCESS_LOG.read_bytes().splitlines():
        try:
            clicks.append(plain.read(line))
        except plain.Unreadable:
            unreadable.append(line)
    return clicks, unreadable


def test_every_number_of_the_report_equals_a_count_of_the_file(ran, counted):
    """Every number of the report equals a count of the file in plain Python."""
    data, text = ran
    clicks, unreadable = counted
    report = json.loads((data / "report.json").read_text())
    total = len(clicks) + len(unreadable)
    minutes = {click["time"].replace(second=0) for click in clicks}
    classes = Counter(f"{click['status'] // 100}xx" for click in clicks)
    pages = Counter(
        click["page"]
        for click in clicks
        if kind(click["page"])[0] == "page" and click["status"] < 400
        if robot(click["user_agent"])[0] is None
    )
    top = sorted(pages.items(), key=lambda one: (-one[1], one[0]))[:10]

    assert (total, len(clicks)) == (10_000, 9_999)
    assert report["published"] == report["logged"] == total
    assert report["archived"] == report["distinct"] == len(clicks)
    assert report["rejected"] == len(unreadable)
    assert report["rejected_by_reason"] == {
        "no user_agent after referer in the line": len(unreadable)
    }
    assert report["minute_clicks"] == len(clicks)
    assert (report["resent"], report["exactly_once"]) == (0, True)
    assert report["minutes"] == len(minutes)
    assert report["bytes"] == sum(click["bytes"] for click in clicks)
    assert report["visitors"] == len({(one["address"], one["user_agent"]) for one in clicks})
    assert {name: count for name, count in report["statuses"].items() if count} == classes
    assert [(row["page"], row["clicks"]) for row in report["top_pages"]] == top
    assert report["findings"]["declared_robot"] > 100
    assert "every acknowledged click is stored exactly once" in text


def test_clicks_are_partitioned_by_day(ran, counted):
    """A row's partition is the day of its event time in UTC."""
    data, _ = ran
    clicks, _ = counted
    days = Counter(click["time"].strftime("%Y-%m-%d") for click in clicks)
    found = DeltaTable(data / "clicks").to_pyarrow_table(columns=["date"])["date"].to_pylist()

    assert Counter(day.isoformat() for day in found) == days
