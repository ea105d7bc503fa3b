"""A short run of the bitrot proof and its control."""

import random

import pytest
from proofs.bitrot import Case, Tally, prove
from proofs.original import SMALL, TOPIC
from proofs.outcome import Plan
from proofs.reopened import replaced

from proofs import bitrot, damages, original
from sparq.log import recovery
from sparq.protocol import batch


@pytest.mark.timeout(300)
def test_only_damaged_batches_are_lost() -> None:
    """Any damage: no body is corrupt, only damaged batches are lost, each loss is reported."""
    outcome = prove(Plan(seed=20261121, count=40))

    assert outcome.held, (outcome.figures, outcome.control)
    assert "corrupt bodies delivered 0" in outcome.figures


def test_the_proof_finds_unreported_damage() -> None:
    """A recovery that does not report its findings fails the proof."""
    sound, tally = original.make(3), Tally()
    path = damages.segments(sound.files_of(TOPIC))[0]
    files = {**sound.files, path: sound.files[path][:5000]}
    damage = damages.Damage("cut", path, 5000, len(sound.files[path]), files)

    with replaced(recovery, "_compare_ordinals", lambda _found: None):
        Case(sound, damage, tally, running=False).run()

    assert tally.wrong["unreported"] > 0


def test_the_proof_finds_loss_outside_the_damage() -> None:
    """A recovery that stops at the first bad byte, as Go's nsqd does, fails the proof."""
    sound, tally = original.make(3), Tally()
    files = sound.files_of(SMALL)
    (path,) = damages.segments(files)
    first = next(one for one in sound.batches if one.path == path)
    damage = damages.flip(sound.files, path, first.offset + 20, 1)

    with replaced(batch, "check_header", lambda *_: False):
        Case(sound, damage, tally, running=False).run()

    assert tally.wrong["outside"] > 0


def test_every_kind_of_damage_changes_something() -> None:
    """A damage that changes no file would prove nothing."""
    sound = original.make(4)

    for damage in bitrot.larger(sound, 30, random.Random(1)):
        if "block" not in damage.kind:
            assert damage.files != sound.files, damage
