"""GUARANTEES.md shows the proofs' results, good or bad."""

import json
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from proofs.guarantees import Book, Result
from proofs.outcome import Outcome, Plan, run, skipped
from proofs.promises import PROMISES

from proofs import __main__ as proofs
from proofs import guarantees, machine

ROOT = Path(__file__).parents[2]
HOLDS = Outcome(("P1",), "kills 50 · lost 0", True, "lost 7", "", "kill", "make kill SEED=1", 12.0)


def book(**outcomes: Outcome) -> Book:
    return Book(
        {"cores": "2"}, {name: Result(row, "today", "abc") for name, row in outcomes.items()}
    )


def test_the_page_is_current() -> None:
    """GUARANTEES.md is generated from the promises and proofs/results.json, not edited."""
    written = (ROOT / "GUARANTEES.md").read_text(encoding="utf-8")

    assert guarantees.page(guarantees.read(), proofs.VERBS) == written


def test_each_promise_has_a_proof_and_each_proof_a_promise() -> None:
    """P1 to P20 are in order; each has a proof, and each proof has a promise."""
    named = {verb for promise in PROMISES for verb in promise.proofs}

    assert [f"P{number}" for number in range(1, 21)] == [promise.name for promise in PROMISES]
    assert all(promise.proofs for promise in PROMISES)
    assert set(proofs.VERBS) == named


def test_the_proofs_are_those_of_the_makefile() -> None:
    """`make proofs` runs exactly the proofs that have a make target."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    found = re.search(r"^PROOFS := (.*)", text, re.M)

    assert found is not None
    assert set(proofs.VERBS) == set(found[1].split())


def test_results_are_read_back_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are read back as they were written; without a file there are none."""
    monkeypatch.setattr(guarantees, "RESULTS", tmp_path / "results.json")
    assert Book() == guarantees.read()
    known = book(kill=HOLDS, power=skipped(("P2",), "needs root"))

    guarantees.write(known)

    assert known == guarantees.read()


def test_a_promise_shows_its_figures() -> None:
    """A promise shows the figures of its first proof and links to all its proofs."""
    p1 = next(promise for promise in PROMISES if promise.name == "P1")
    text = guarantees.section(p1, book(kill=HOLDS))

    assert "> [`make kill`](#kill): holds. kills 50 · lost 0" in text
    assert "[`make crash`](#crash) (not run yet)" in text


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (HOLDS, "P1: holds"),
        (Outcome(("P1",), "lost 3", held=False), "P1: **FAILED**"),
        (skipped(("P2",), "needs root"), "P2: skipped: needs root"),
    ],
)
def test_failed_and_skipped_proofs_are_shown(outcome: Outcome, told: str) -> None:
    """Failures and skipped proofs are visible on the page."""
    page = guarantees.page(book(kill=outcome), ["kill"])

    assert f"### kill\n\n- {told}\n" in page
    assert (outcome.figures or told) in page
    assert (outcome.control or told) in page


def write_proof(folder: Path, body: str) -> None:
    """Write a package `proofs` that has only the proof `kill`."""
    (folder / "proofs").mkdir()
    (folder / "proofs" / "__init__.py").touch()
    (folder / "proofs" / "kill.py").write_text(body)


def test_a_proof_that_ends_without_an_outcome_has_failed(tmp_path: Path) -> None:
    """Such a proof is recorded as failed, with the promises that it should have proved."""
    write_proof(tmp_path, "raise SystemExit(3)")

    outcome = proofs.run("kill", None, tmp_path)

    assert not outcome.held
    assert "ended without an outcome, exit status 3" == outcome.figures
    assert "P1" in outcome.promises


def test_the_outcome_of_a_proof_is_recorded(tmp_path: Path) -> None:
    """The outcome that a proof writes is recorded, and the proof gets the seed."""
    row = json.dumps({"promises": ["P1"], "figures": "kills 1", "held": True})
    write_proof(
        tmp_path,
        f"import sys, pathlib\nassert sys.argv[3:] == ['--seed', '9']\n"
        f"pathlib.Path(sys.argv[2]).write_text('''{row}''')\n",
    )

    assert Outcome(("P1",), "kills 1", held=True) == proofs.run("kill", 9, tmp_path)


def test_a_run_writes_results_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed proof makes the exit status 1; the results of proofs that were not run are kept."""
    monkeypatch.setattr(guarantees, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(guarantees, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(machine, "facts", lambda: {"cores": "2"})
    came = {"kill": HOLDS, "crash": Outcome(("P1",), "lost 1", held=False)}
    monkeypatch.setattr(proofs, "run", lambda verb, _seed: came[verb])

    assert 0 == proofs.main(["--only", "kill"])
    assert 1 == proofs.main(["--only", "crash"])

    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "kills 50 · lost 0" in page
    assert "P1: **FAILED**" in page


def test_the_mixed_run_is_parallel_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixed run starts first and ends last; the others run one after another in their order."""
    begun = threading.Event()
    others = threading.Event()
    came: list[str] = []

    def run(verb: str, _seed: int | None, *, beside: bool = False) -> Outcome:
        if beside:
            begun.set()
            assert others.wait(60)
        else:
            assert begun.wait(60)
        return replace(HOLDS, verb=verb)

    monkeypatch.setattr(proofs, "run", run)

    for verb, outcome in proofs.outcomes(["kill", "mixed", "crash"], None):
        came.append(verb)
        assert verb == outcome.verb
        if verb == "crash":
            others.set()

    assert ["kill", "crash", "mixed"] == came


def test_a_modified_commit_gets_a_plus(tmp_path: Path) -> None:
    """A modified tree gets a "+", unless only files that the proofs write have changed."""
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        (tmp_path / "code.py").write_text("")
        (tmp_path / "GUARANTEES.md").write_text("")
        proofs.git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words)
    clean = proofs.commit(tmp_path)
    (tmp_path / "GUARANTEES.md").write_text("new")

    assert clean == proofs.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]+", clean)
    (tmp_path / "code.py").write_text("new")
    assert clean + "+" == proofs.commit(tmp_path)


def test_an_unknown_proof_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No proof is run, and the error names the unknown proof."""
    with pytest.raises(SystemExit):
        proofs.main(["--only", "kil"])

    assert "there is no proof kil" in capsys.readouterr().err


def test_the_command_line_of_a_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof gets seed and count; its output has the command to repeat it and its outcome."""
    monkeypatch.setattr(sys, "argv", ["make kill"])
    given: list[Plan] = []

    def prove(plan: Plan) -> Outcome:
        given.append(plan)
        return Outcome(("P1",), "kills 3", held=False, control="lost 1")

    words = ["--seed", "5", "--count", "3", "--json", str(tmp_path / "outcome")]
    status = run("kill", prove, count=50, of="kills", arguments=words)

    assert 1 == status
    assert [Plan(seed=5, count=3)] == given
    said = capsys.readouterr().out
    assert "repeat with: make kill SEED=5 N=3" in said
    assert "kill: P1 FAILED" in said
    assert "kills 3" == json.loads((tmp_path / "outcome").read_text())["figures"]


def test_the_machine_is_described() -> None:
    """The description names all that figures depend on, including the measured time of a sync."""
    facts = machine.facts()

    assert {"cores", "memory", "kernel", "Python"} < set(facts)
    assert re.fullmatch(r"\d+\.\d\d ms at p50, \d+\.\d\d ms at p99", facts.popitem()[1])
