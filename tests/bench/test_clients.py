"""The benchmark of clients with small runs: work, figures, errors, table and targets."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.client_targets import TARGETS, Speed, report
from bench.clients import CLIENTS, FLAGS, LINES, Bench, Client, ClientError, Line, keys, main

from tests.support.servers import spawn_nsqd

TOTAL = 2_000
BY_ITERATION, WITH_HANDLER, IN_BATCHES, BLOCKING, ONE_TASK, HUNDRED_TASKS, _ = LINES


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One nsqd for all runs of this module."""
    with spawn_nsqd(tmp_path_factory.mktemp("bench"), *FLAGS) as server:
        yield Bench(server)


def client_of(key: str) -> Client:
    """Return a client by its command-line name; skip the test if it is not installed."""
    (client,) = (each for each in CLIENTS if each.key == key)
    if reason := client.missing():
        pytest.skip(f"needs {reason}")
    return client


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("sparq", BY_ITERATION),
        ("sparq-uvloop", WITH_HANDLER),
        ("sparq", IN_BATCHES),
        ("sparq", BLOCKING),
        ("pynsq", WITH_HANDLER),
        ("gnsq", HUNDRED_TASKS),
        ("ansq", BY_ITERATION),
        ("bound", HUNDRED_TASKS),
    ],
)
def test_a_client_does_its_work(key: str, line: Line, bench: Bench) -> None:
    """Only messages after the warm-up count, and CPU time is measured on both sides."""
    figures = bench.run(client_of(key), line, TOTAL)

    assert TOTAL * 0.5 < figures.messages <= TOTAL
    assert figures.rate > 0
    assert figures.client_cpu > 0
    assert figures.server_cpu >= 0  # a batch may be done before the first reading
    assert "Python 3" in bench.versions[key]


def test_a_client_that_drops_work_has_no_figure(bench: Bench) -> None:
    """A program that ends before its work is done is an error that quotes its output."""
    broken = Client("broken", "sparq", frozenset({"upwards"}))

    with pytest.raises(ClientError, match=r"broken ended before it said 'begin':[\s\S]*KeyError"):
        bench.run(broken, Line("sideways", "upwards"), TOTAL)


def test_the_command_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table shows the chosen lines and clients with their versions; no files remain."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    words = ["--only", "100 tasks", "--clients", "sparq", "--rounds", "1", "--seconds", "0"]
    try:
        assert 0 == main(words)
    finally:
        signal.signal(signal.SIGTERM, before)

    printed = capsys.readouterr().out
    assert "publish, awaited, 100 tasks" in printed
    assert "1,000 tasks" not in printed
    assert "sparq: sparq-mq " in printed
    assert not any(tmp_path.iterdir())


def test_only_known_clients_can_be_chosen() -> None:
    """The error for an unknown name lists all names."""
    assert ["ansq", "sparq"] == keys("ansq,sparq")
    with pytest.raises(argparse.ArgumentTypeError, match="nsq is none of sparq, sparq-uvloop"):
        keys("nsq")


def test_consuming_is_compared_with_the_best_other_client() -> None:
    """The best other client on any consuming line is the rival.

    When publishing, it is the best on the same line. The ratio of the CPU costs is printed, too.
    """
    said = report(
        {
            "consume + FIN, by iteration": {"sparq": Speed(50_000, 10), "ansq": Speed(5_000, 40)},
            "consume + FIN, with a handler": {
                "sparq": Speed(60_000, 8),
                "pynsq": Speed(11_000, 60),
            },
            "consume + FIN, blocking face": {"sparq": Speed(9_000, 20)},
            "publish, awaited, 1 task": {
                "sparq": Speed(3_000, 50),
                "gnsq": Speed(1_000, 100),
                "bound": Speed(9_000, 9),
                "ansq": Speed(900, 90),
            },
        }
    )

    assert "4.55 x pynsq (CPU 4.00 x)  at least 5: MISSED" in said
    assert "5.45 x pynsq (CPU 5.00 x)  at least 5: met" in said
    assert "3.00 x gnsq  (CPU 1.80 x)  at least 3: met" in said
    assert 4 == len(said.splitlines())


def test_without_a_rival_there_is_no_verdict() -> None:
    """An target is not met merely because no other client was measured."""
    assert "" == report({"publish, awaited, 1 task": {"sparq": Speed(3_000, 50)}})


def test_every_aim_names_a_line() -> None:
    """A renamed line would silently drop its target."""
    for target in TARGETS:
        assert any(line.name.startswith(target.lines) for line in LINES)
