"""How lateness is counted: what the machine overslept is taken off, and nothing else."""

from __future__ import annotations

from pathlib import Path

from proofs.lateness import Lateness, Stalls, sleeping, stalls_of


def test_what_was_overslept_is_taken_off_once() -> None:
    """Two who slept at the same time are one excuse, and time before the due time is none."""
    lateness, machine = Lateness(), Stalls()
    lateness.note(10.0, 10.5)
    lateness.own.note(9.0, 10.1)
    lateness.own.note(10.2, 10.3)
    machine.note(10.15, 10.3)
    machine.note(20.0, 30.0)

    assert round(lateness.latest(), 9) == 0.5
    assert round(lateness.latest_net(machine), 9) == 0.3
    assert round(lateness.latest_net(Stalls()), 9) == 0.3


def test_nobody_asleep_is_no_excuse() -> None:
    """A delivery that is late while everything else is on time stays late."""
    lateness = Lateness()
    lateness.note(1.0, 1.25)

    assert lateness.latest_net(Stalls()) == 0.25
    assert Lateness().latest_net(Stalls()) == 0.0


def test_a_process_beside_sleeps_and_notes_whole_lines(tmp_path: Path) -> None:
    """Its notes are read up to the last whole line, whatever it is writing at that moment."""
    with sleeping(tmp_path) as notes:
        assert notes.exists()
    notes.write_bytes(b"1.0 1.5\n2.0 2.25\n3.0 3.")
    stalls = stalls_of(notes)

    assert (stalls.begins, stalls.ends) == ([1.0, 2.0], [1.5, 2.25])
