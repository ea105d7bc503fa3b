"""A short run of a proof in the tests; `make proofs` runs it in full, with its controls."""

from __future__ import annotations

from types import ModuleType

import pytest
from proofs.outcome import Outcome, Plan

Runs = dict[ModuleType, Plan]


def holds(proof: ModuleType, plan: Plan) -> None:
    """Assert that a run finds no violation, and that the controls that it includes are noticed."""
    outcome: Outcome = proof.prove(plan)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.held, (outcome.figures, outcome.control)


def name_of(proof: ModuleType) -> str:
    """A proof's name, as an id of a test."""
    return proof.__name__.partition(".")[2]
