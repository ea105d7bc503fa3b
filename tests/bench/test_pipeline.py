"""The pipeline benchmark without a pipeline: clicks, batches, latencies, figures and targets."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.__main__ import main as command
from bench.pipeline import MEASURES, Bench, main, measured, two_cores
from bench.pipeline_clicks import Crowd, day_file, lines_of, write_parquet
from bench.pipeline_clicks import as_json as json_click
from bench.pipeline_latency import BURST_PAGES, PEOPLE, Seen, Tick, people, quantile, robot
from bench.pipeline_measures import opened_table, parse_us
from bench.pipeline_output import TableCommits, batch_times, first_archived
from bench.pipeline_processes import BenchError, memory_mib, until
from bench.pipeline_targets import SUSTAINED_RATIO as RATIO
from bench.pipeline_targets import TARGETS, Figure, as_json, report
from deltalake import DeltaTable, write_deltalake

from bench import pipeline
from sparq.pipeline.enrich import parse_arrow


def read(lines: list[bytes]) -> pa.Table:
    """Parse lines as clicks."""
    return parse_arrow(pa.table({"body": pa.array(lines, pa.binary())}))


def test_a_crowd_has_the_requested_visitors_and_rate() -> None:
    """All clicks parse; each visitor has 10, the first on a page; the last is on schedule."""
    clicks = read(list(Crowd(50, 10).lines(500)))
    by_visitor = clicks.group_by("address").aggregate([("path", "count")])
    seconds = [at.second + 60 * at.minute for at in clicks["time"].to_pylist()]
    pages = [path.startswith("/articles/") for path in clicks["path"].to_pylist()]

    assert {None} == set(clicks["reason"].to_pylist())
    assert {10} == set(by_visitor["path_count"].to_pylist())
    assert [0, 49] == [seconds[0], seconds[-1]]
    assert all(pages[:50])
    assert 100 < sum(pages[50:]) < 150


def test_json_clicks_are_clicks(tmp_path: Path) -> None:
    """Both kinds of JSON clicks parse, and reading them takes some CPU time."""
    lines = [json_click(number, odd=odd) for number in range(20) for odd in (False, True)]

    assert {None} == set(read(lines)["reason"].to_pylist())
    assert b'\\"quoted' in lines[1]
    assert 0 < parse_us(lines, len(lines)) < 100_000


def test_a_table_of_many_batches_has_few_files(tmp_path: Path) -> None:
    """Merges keep the number of files small; all rows are there."""
    found = opened_table(tmp_path / "table", 200)

    assert 1 <= found.files <= 40
    assert 0 < found.seconds < 60


def test_a_crowd_continues_its_sequence() -> None:
    """The clicks from a number on are the same as in an uninterrupted sequence."""
    whole = list(Crowd(7, 3).lines(20))

    assert whole[8:] == list(Crowd(7, 3).lines(12, first=8))


def test_a_generated_day_is_made_once(tmp_path: Path) -> None:
    """The file has the requested number of lines; a second call returns the same file."""
    path = day_file(tmp_path, 300)
    made = path.stat().st_mtime_ns

    assert 300 == len(list(lines_of(path)))
    assert [path, made] == [day_file(tmp_path, 300), path.stat().st_mtime_ns]


def test_parquet_has_the_lines_in_their_order(tmp_path: Path) -> None:
    """The lines are spread over files with the source's columns; too few lines are an error."""
    lines = list(Crowd(5, 5).lines(11))
    write_parquet(lines, 11, tmp_path / "files")
    tables = [pq.read_table(path) for path in sorted((tmp_path / "files").glob("*.parquet"))]
    rows = pa.concat_tables(tables)

    assert lines == rows["body"].to_pylist()
    assert list(range(11)) == rows["index"].to_pylist()
    assert 4 == len(tables)
    with pytest.raises(ValueError, match="11 lines, not 12"):
        write_parquet(lines, 12, tmp_path / "more")


def test_the_clicks_of_people_and_robots_differ() -> None:
    """People request more than pages; a robot's pages are a burst of one address."""
    paths = read(people(0, 4 * PEOPLE))["path"].to_pylist()
    address, pages = robot(3)
    burst = read(pages)

    assert PEOPLE == sum(path.startswith("/articles/") for path in paths)
    assert {address} == set(burst["address"].to_pylist())
    assert BURST_PAGES == len(set(burst["path"].to_pylist()))
    assert address != robot(4)[0]


def test_rows_of_a_table_are_read_by_commit(tmp_path: Path) -> None:
    """Each commit's rows are read once; a merge of files adds none."""
    committed = TableCommits(tmp_path, ["clicks"])
    before = committed.new()
    for clicks in ([10, 5], [4]):
        write_deltalake(tmp_path, pa.table({"clicks": clicks}), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    found = committed.new()

    assert [[], []] == [before, committed.new()]
    assert [[10, 5], [4], []] == [rows["clicks"].to_pylist() for rows, _ in found]
    assert found[0][1] == (tmp_path / "_delta_log" / f"{0:020}.json").stat().st_mtime


def test_a_latency_ends_with_the_result_of_the_click() -> None:
    """A latency ends with the total that includes the tick, or a robot's finding, or is inf."""
    ticks = [Tick(10.0, 100, "a"), Tick(10.5, 200), Tick(11.0, 300, "b"), Tick(11.5, 400)]
    seen = Seen([(100, 11.0), (300, 13.0)], {"a": 12.0})

    assert [1.0, 2.5, 2.0, math.inf] == seen.minutes(ticks)
    assert [2.0, math.inf] == seen.findings(ticks)
    assert [2.0, math.inf] == [quantile(seen.minutes(ticks), part) for part in (0.3, 0.99)]
    assert math.isnan(quantile([], 0.5))


def test_the_time_of_a_batch_is_from_its_offset_to_its_commit(tmp_path: Path) -> None:
    """The time is that between two files' mtimes; a batch with an unchanged offset has no rows."""
    for folder, offsets in (("offsets", 100.0), ("commits", 101.5)):
        (tmp_path / folder).mkdir()
        for number, offset in enumerate(('{"a":1}', '{"a":2}', '{"a":2}')):
            path = tmp_path / folder / str(number)
            path.write_text(f"v1\n{{}}\n{offset}")
            os.utime(path, (offsets + number, offsets + number))
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n{}")
    times = batch_times(tmp_path)

    assert [0, 1, 2] == list(times)
    assert {1.5} == {batch.seconds for batch in times.values()}
    assert [True, True, False] == [batch.has_rows for batch in times.values()]


def test_the_first_archived_click_is_the_first_commit_with_a_file(tmp_path: Path) -> None:
    """The result is None before that commit."""
    log = tmp_path / "_delta_log"
    before = first_archived(tmp_path)
    log.mkdir()
    for number, text in enumerate(('{"protocol":{}}', '{"add":{}}', '{"add":{}}')):
        (log / f"{number}.json").write_text(text)
        os.utime(log / f"{number}.json", (50 + number, 50 + number))

    assert (None, 51) == (before, first_archived(tmp_path))


def test_memory_is_that_of_the_process() -> None:
    """The peak is at least the present size; a process that does not exist has none."""
    peak, now = (memory_mib(os.getpid(), field) for field in ("VmHWM", "VmRSS"))

    assert peak >= now > 1
    assert 0 == memory_mib(0)


def test_until_returns_or_raises() -> None:
    """`until` returns the condition's value, or raises an error that names what was awaited."""
    assert 7 == until(lambda: 7, 1, "seven")
    with pytest.raises(BenchError, match="rain: not within 0 s"):
        until(lambda: False, 0, "rain")


def test_targets_are_compared_with_medians() -> None:
    """The grade depends on the target's side; figures that were not measured are not reported."""
    least = next(target for target in TARGETS if target.figure == RATIO)
    most = next(
        target for target in TARGETS if not target.is_least and target.must != target.target
    )

    assert ["target met", "must met", "MISSED"] == [least.grade(value) for value in (1.2, 0.9, 0.5)]
    assert ["target met", "must met", "MISSED", "MISSED"] == [
        most.grade(value) for value in (most.target, most.must, most.must * 2, math.nan)
    ]
    assert "MISSED" in report([Figure(RATIO, "", [0.9, 0.1, 0.2])], "abc")
    assert "" == report([], "abc")


def test_json_has_null_for_infinite_values() -> None:
    """Infinite values become null, so that the file is strict JSON."""
    figures = [Figure(RATIO, "", [0.95]), Figure("latency", "s", [1.0, math.inf, math.inf])]
    found = json.loads(json.dumps(as_json(figures), allow_nan=False))

    assert [0.95, None] == [figure["median"] for figure in found["figures"]]
    assert [1.0, None, None] == found["figures"][1]["rounds"]
    assert ["must met"] == [target["is"] for target in found["targets"]]


def failing(bench: Bench) -> None:
    """A measure that fails."""
    raise BenchError("no water")


def depth(bench: Bench) -> None:
    """A measure with one figure: the number of clicks."""
    for _ in bench.each_round():
        bench.note("depth", "m", bench.sized(3_000))


def test_a_measure_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch) -> None:
    """The error is counted and in the JSON file; the other measures have their figures."""
    monkeypatch.setattr(pipeline, "MEASURES", {"sea": failing, "lake": depth, "hill": failing})
    failed = main(tmp_path / "work", 1, 2_000, ["sea", "lake"], tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())

    assert 1 == failed
    assert {"sea": "BenchError: no water"} == found["failed"]
    assert [2_000] == [figure["median"] for figure in found["figures"]]
    assert {"commit", "time", "load", "cores", "rounds", "clicks"} <= found.keys()


def test_measures_are_chosen_by_name(tmp_path: Path, monkeypatch, capfd) -> None:
    """Measures are chosen on the command line; the error for an unknown name lists all names."""
    monkeypatch.setattr(pipeline, "MEASURES", {"sea": failing, "lake": depth, "lakeside": failing})
    monkeypatch.chdir(tmp_path)
    command(["--parts", "pipeline", "--measures", "lake"])
    with pytest.raises(SystemExit, match="'snow' is none of sea, lake, lakeside"):
        command(["--parts", "pipeline", "--measures", "lake,snow"])
    out, err = capfd.readouterr()

    assert 3 == pipeline.ROUNDS == err.count("round ")
    assert "depth " in out
    assert "FAILED" not in out


def test_a_missing_log_file_is_an_error(tmp_path: Path, monkeypatch) -> None:
    """A missing log file ends the program before it measures; the error names the option."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"--log=none\.log is no file"):
        command(["--parts", "pipeline", "--log", "none.log"])


def test_the_table_of_targets_names_the_commit(tmp_path: Path, monkeypatch, capfd) -> None:
    """Each figure with a target is shown with its value, its minimum and its target."""
    monkeypatch.setattr(pipeline, "MEASURES", {"parse": lambda bench: bench.note(RATIO, "", 0.95)})
    main(tmp_path, 1, names=["parse"])
    out = capfd.readouterr().out
    table = out[out.index("targets at commit ") :].splitlines()

    assert f"targets at commit {pipeline.conditions()['commit']}:" == table[0]
    assert ["0.95", "at", "least", "0.9,", "target", "1.2:", "must", "met"] == table[1].split()[-8:]


def test_measures_have_a_fixed_order() -> None:
    """The measures have a fixed order; an empty list of names chooses none."""
    names = ["parse", "sustained", "alone", "run", "long", "table", "memory", "state", "latency"]
    assert names == list(MEASURES)
    assert [] == list(measured(Bench(Path("nowhere"), 1), []))


def test_everything_runs_on_two_cores() -> None:
    """The number of cores is limited to two, and restored afterwards."""
    before = os.sched_getaffinity(0)
    with two_cores() as cores:
        inside = os.sched_getaffinity(0)

    assert cores == len(inside) <= 2
    assert before == os.sched_getaffinity(0)
