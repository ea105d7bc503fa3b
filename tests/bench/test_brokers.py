"""The bench of brokers and clients, with small runs; targets and comparisons of made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop
from bench.against import ROOT, line
from bench.against import main as against
from bench.clients import CLIENTS, Bench
from bench.clients import LINES as CLIENT_LINES
from bench.generator import Figures
from bench.lines import Shape, at_once, deliver, latency, publish
from bench.peers import CONTESTANTS
from bench.table import Cell, Result

from bench import clients, queued
from tests.support.servers import spawn_nsqd

SECONDS, SLOW_SECONDS = 0.1, 60.0
KINDS = ("sparq", "go", "redis-later", "nats", "beanstalkd-later")
BY_KEY = {contestant.key: contestant for contestant in CONTESTANTS}


def result_of(name: str = "line", **rates: list[float]) -> Result:
    """Return a line whose rounds have these rates, at one microsecond of CPU per message."""
    result = Result(name)
    for key, each in rates.items():
        result.cells[key] = Cell(key, [Figures(rate, 1.0, rate * 1e-6, 0.5) for rate in each])
    return result


@pytest.mark.parametrize("key", KINDS)
def test_a_broker_does_every_kind_of_run(key: str, tmp_path: Path) -> None:
    """It publishes, delivers, does both at once, counts times, and survives a kill."""
    if reason := BY_KEY[key].kind.missing():
        pytest.skip(reason)
    peer = BY_KEY[key].make(tmp_path / "peer")
    shapes = [Shape(connections=2), Shape(window=1)]
    shapes += [Shape(batch=10, window=4)] * ("batch" in peer.can)
    shapes += [Shape(window=1, over_http=True)] * ("http" in peer.can)
    try:
        peer.start()
        for shape in shapes:
            found = uvloop.run(publish(shape)(peer, SECONDS))
            assert min(found.messages, found.server, found.generator) > 0
            assert (shape.window == 1) == bool(found.times)
        assert 60 == uvloop.run(deliver(20, 2, 60)(peer, SLOW_SECONDS)).messages
        assert uvloop.run(at_once(Shape(batch=10, window=4, channels=1))(peer, SECONDS)).messages
        assert 10 == len(uvloop.run(latency(100, 10)(peer, SECONDS)).times)
    finally:
        peer.close()
    if "backlog" in BY_KEY[key].parts:
        again = queued.measure(BY_KEY[key], tmp_path, 20_000)
        assert 0 < again.restart_seconds < SLOW_SECONDS
        assert again.drain.messages > 0


@pytest.mark.parametrize(
    ("new", "control", "mark"),
    [([99, 9, 98], [101, 10, 100], ""), ([90, 9], [100, 10], "SLOWER"), ([90, 9], [91, 9], "")],
)
def test_a_line_is_slower_beyond_3_percent_and_the_control(
    new: list[float], control: list[float], mark: str
) -> None:
    """Ratios are those of rounds; a loss that the control has, too, is due to the machine."""
    old = [100, 10, 100][: len(new)]
    text, is_kept = line(result_of(new=new, old=old, control=control))

    assert (text.endswith("SLOWER"), is_kept) == (bool(mark), not mark)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout of git")
def test_a_commit_is_compared(tmp_path: Path, monkeypatch, capsys) -> None:
    """A line is measured on three nsqds; an unknown commit is an error."""
    monkeypatch.chdir(tmp_path)
    words = ["--only=PUB, pipelined, 1 KiB", "--rounds=1", "--seconds=0.1"]

    assert against(["HEAD", *words]) in (0, 1)
    assert 2 == against(["no-such-commit", *words])
    row = capsys.readouterr().out.splitlines()[1].removeprefix("PUB, pipelined, 1 KiB")
    assert all(float(ratio) > 0 for ratio in row.split()[:4])


@pytest.mark.parametrize("key", CLIENTS)
def test_a_client_does_its_work(key: str, tmp_path: Path) -> None:
    """Each way of each client has a rate; a program that ends is an error with its output."""
    if reason := CLIENTS[key].missing():
        pytest.skip(f"needs {reason}")
    with spawn_nsqd(tmp_path, *clients.FLAGS) as server:
        bench = Bench(server)
        for each in CLIENT_LINES:
            if each.way in CLIENTS[key].ways.split() and each.tasks in (0, 100):
                figures = bench.run(key, each, SECONDS)
                assert figures.rate > 0, each
                assert figures.server > 0
