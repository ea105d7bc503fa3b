"""Counted instructions: the figures of a line, and nsqd under callgrind."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from bench.generator import Figures
from bench.instructions import CountedNsqd, compare, difference, text
from bench.lines import LINES, Shape, at_once, deliver, publish
from bench.peers.nsq import Sparq

from bench import instructions


def test_a_difference_is_free_of_what_every_run_needs() -> None:
    """The cost of a topic and its connections, the same in both runs, is not in the result."""
    few = Figures(100, 1.0, 5.0 + 100 * 0.002, 0.0)
    many = Figures(300, 1.0, 5.0 + 300 * 0.002, 0.0)

    assert difference(few, many) == pytest.approx(2_000)


@pytest.mark.parametrize(("new", "holds"), [(102.9, True), (103.1, False), (90.0, True)])
def test_a_line_is_dearer_beyond_three_percent(new: float, *, holds: bool) -> None:
    """The median of the rounds' ratios counts: a round that costs both sides more does not."""
    shown, found = text("line", [2 * new, new, new + 50], [200, 100, 100])

    assert found == holds
    assert shown.endswith("DEARER") != holds
    assert shown.split()[3:5] == [f"{new / 100:.3f}", "0.500"]


def test_a_run_can_be_limited_in_messages(tmp_path: Path) -> None:
    """Exactly as many messages are moved, over several connections and to several channels, too."""
    batches = Shape(batch=10, window=4, channels=2)
    http = Shape(window=1, connections=2, over_http=True)
    peer = Sparq(tmp_path / "peer")
    try:
        peer.start()
        for measure in (
            publish(Shape(connections=4, window=20)),
            publish(http),
            deliver(20, 2, 1),
            at_once(batches),
        ):
            assert uvloop.run(measure(peer, 0.0, 6_000)).messages == 6_000
    finally:
        peer.close()


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_nsqd_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PUB takes more than 10,000 instructions; the same nsqd twice takes about as many."""
    (line,) = (each for each in LINES if each.name == "PUB, one at a time, 200 B")
    monkeypatch.setattr(instructions, "LINES", (replace(line, messages=50),))
    nsqd = CountedNsqd(tmp_path / "nsqd")
    try:
        nsqd.start()

        compare(nsqd, nsqd, only="PUB", rounds=1)
    finally:
        nsqd.close()

    row = capsys.readouterr().out.splitlines()[1].removeprefix(line.name).split()
    new, old = (int(figure.replace(",", "")) for figure in row[:2])
    assert 10_000 < new < 10_000_000
    assert new == pytest.approx(old, rel=0.5)
