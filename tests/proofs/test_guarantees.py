"""GUARANTEES.md shows the proofs' results, good or bad; nothing is left unproven or unnamed."""

from __future__ import annotations

import re
from pathlib import Path

from proofs.promises import PROMISES

from proofs import __main__ as proofs
from proofs import golden, guarantees
from sparq.protocol import SPARQ_VERSION

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    """GUARANTEES.md is generated from the promises and proofs/results.json, not edited."""
    written = (ROOT / "GUARANTEES.md").read_text(encoding="utf-8")

    assert guarantees.page(guarantees.read(), proofs.VERBS) == written


def test_each_promise_has_a_proof_and_each_proof_a_target() -> None:
    """Promises are in order, and `make proofs` runs exactly the proofs that they name."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    targets = re.findall(r"^PROOFS := (.*)", makefile, re.M)[0].split()

    assert [f"P{number}" for number in range(1, len(PROMISES) + 1)] == [p.name for p in PROMISES]
    assert all(promise.proofs for promise in PROMISES)
    assert {verb for promise in PROMISES for verb in promise.proofs} == set(proofs.VERBS)
    assert set(proofs.VERBS) == set(targets)


def test_a_proof_that_ends_without_an_outcome_has_failed(tmp_path: Path) -> None:
    """Such a proof is recorded as failed, with the promises that it should have proved."""
    (tmp_path / "proofs").mkdir()
    (tmp_path / "proofs" / "__init__.py").touch()
    (tmp_path / "proofs" / "crash.py").write_text("raise SystemExit(3)")

    outcome = proofs.run("crash", None, tmp_path)

    assert not outcome.held
    assert "ended without an outcome, exit status 3" == outcome.figures
    assert "P1" in outcome.promises


def test_this_version_has_golden_data_paths() -> None:
    """A release includes data paths that it wrote."""
    assert SPARQ_VERSION in {pack.parent.name.partition("-")[0] for pack in golden.packs()}
