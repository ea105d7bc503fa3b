"""`make mutants`: the verdict on a mutant, the tests that it runs, and a run with two mutants."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from locks.environment import ENVIRONMENTS
from proofs.mutants import Judged
from proofs.mutants_parts import judge
from proofs.mutants_parts.judge import Mutant, Verdict, Workplace, statement_lines

from proofs import mutants

ROOT = Path(__file__).parents[2]
MODULE = "src/sparq/protocol/durations.py"
TESTS = "tests/protocol/test_durations.py"
FORMATS = f"{TESTS}::test_durations_are_printed_as_go_prints_them"
CODE = """LIMIT = 5
def f(x=1):
    if (
        x > LIMIT
    ):
        return x
    y = [
        x,
    ]
    return y
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A copy of the repository."""
    return Workplace(tmp_path_factory.mktemp("mutants"), ROOT)


def mutant(old: str, new: str) -> Mutant:
    """Return the module with one change."""
    text = (ROOT / MODULE).read_text(encoding="utf-8")
    assert text.count(old) == 1
    return Mutant(MODULE, text[: text.index(old)].count("\n") + 1, text.replace(old, new))


def test_a_failing_test_kills_and_a_passing_one_does_not(workplace: Workplace) -> None:
    """The module's own tests kill a wrong text but not a comment; the copy is restored."""
    wrong = mutant('return "0s"', 'return "0ms"')
    same = mutant('return "0s"', 'return "0s"  # as before')
    tests = [f"{FORMATS}[1-1ns]", f"{FORMATS}[0-0s]"]

    assert Verdict(True, "own tests", 2) == workplace.judge(wrong, tests, {})
    assert Verdict(False, "", 2) == workplace.judge(same, tests, {})
    assert (ROOT / MODULE).read_bytes() == (workplace.folder / MODULE).read_bytes()


def test_only_tests_that_reach_the_mutant_are_run(workplace: Workplace) -> None:
    """Other tests do not kill a mutant; if a change renames an example, all examples are run."""
    wrong = mutant('return "0s"', 'return "0ms"')

    assert not workplace.judge(wrong, [f"{FORMATS}[1-1ns]"], {}).killed
    assert workplace.judge(wrong, [f"{FORMATS}[renamed]"], {}).killed


def test_tests_that_do_not_end_are_stopped(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that never ends is killed by time."""
    monkeypatch.setattr(judge, "SECONDS_MIN", 1.0)
    endless = mutant("MILLISECOND = 1_000_000", "while True: pass")

    assert Verdict(True, "time", 1) == workplace.judge(endless, [f"{FORMATS}[0-0s]"], {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [(1, None), (2, None), (4, range(3, 6)), (6, range(6, 7)), (8, range(7, 10))],
)
def test_a_change_belongs_to_its_whole_statement(line: int, expected: range | None) -> None:
    """For an `if` it is the condition alone; for code that runs at import, the whole module."""
    assert expected == statement_lines(ast.parse(CODE), line)


def test_the_score_counts_by_package() -> None:
    """Killed mutants are counted by what killed them; a mutant that no test reaches survives."""
    found = [
        Judged(Mutant("src/sparq/log/disk.py", 1, ""), Verdict(True, "own tests", 3)),
        Judged(Mutant("src/sparq/log/disk.py", 2, ""), Verdict(False, "", 3)),
        Judged(Mutant("src/sparq/log/disk.py", 3, ""), Verdict(False, "", 0)),
        Judged(Mutant("src/sparq/broker/topic.py", 1, ""), Verdict(True, "time", 3)),
    ]

    rows = mutants.table(found)[2:]

    assert "| log | 3 | 1 | 1 | 0 | 1 | 1 | 33 % |" == rows[0]
    assert "| broker | 1 | 1 | 0 | 1 | 0 | 0 | 100 % |" == rows[1]
    assert "| all | 4 | 2 | 1 | 1 | 1 | 1 | 50 % |" == rows[2]


def test_two_mutants_of_one_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two mutants are chosen, run and counted; the same seed chooses the same ones."""
    chosen = mutants.modules(["protocol.durations"])
    try:
        found, places = mutants.choose(chosen, 2, 7)
    except subprocess.CalledProcessError:
        shutil.rmtree(ENVIRONMENTS / "mutants", ignore_errors=True)
        pytest.skip("needs an index of Python packages")
    assert places > 10
    assert all(ast.parse(each.text) for each in found)

    arguments = ["--only", "protocol.durations", "--tests", TESTS, "--data", str(tmp_path)]
    assert 0 == mutants.main([*arguments, "--count", "2", "--seed", "7"])
    printed = capsys.readouterr().out
    assert "repeat with: make mutants SEED=7 N=2" in printed
    assert "| protocol | 2 | " in printed
    survived = [line for line in printed.splitlines() if ": survived" in line]
    places = [f"{each.path}:{each.line}" for each in found]
    assert all(line.partition(": ")[0] in places for line in survived)
