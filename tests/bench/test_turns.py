"""bench.turns: each kind of turn moves its messages."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from bench.turns import KINDS, Kind, Line

from bench import turns


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_turn_moves_its_messages(kind: Kind, tmp_path: Path) -> None:
    """Each turn publishes, or finishes and delivers, the kind's number of messages."""
    line = Line(tmp_path)
    begun = kind.turns(line)
    assert next(begun) > 0
    before = moved(line)
    assert 5 == len(list(islice(begun, 5)))

    assert 5 * kind.messages == moved(line) - before


def moved(line: Line) -> int:
    """Return the number of messages finished, or published if there is no channel."""
    topic = line.broker.topics["t"]
    return line.session.finish_count if topic.channels else topic.counts.message_count


def test_the_table_has_each_chosen_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Each chosen kind has a line with its times."""
    monkeypatch.chdir(tmp_path)
    assert 0 == turns.main(["--rounds", "1", "--only", "MPUB"])

    head, *lines = capsys.readouterr().out.splitlines()
    assert ["us", "median", "a", "message", "lowest", "mean"] == head.split()
    assert ["MPUB of 200 x 200 B", "MPUB of 200 x 1024 B"] == [line[:32].strip() for line in lines]
    assert all(float(line[32:42]) > 0 for line in lines)


def test_turns_can_be_run_untimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--turns`, exactly as many turns run, and no figures are shown."""
    ran: list[int] = []

    def counted(_: Line) -> Iterator[float]:
        while True:
            ran.append(1)
            yield 0.001

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(turns, "KINDS", (Kind("counted", 1, counted),))
    assert 0 == turns.main(["--turns", "7"])

    assert 7 == len(ran)
    assert 1 == len(capsys.readouterr().out.splitlines())
