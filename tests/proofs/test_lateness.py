"""Lateness: only stalls of the machine or of the proof are subtracted."""

from __future__ import annotations

from pathlib import Path

from proofs.lateness import Lateness, Stalls, sleeping, stalls_of


def test_simultaneous_stalls_are_subtracted_once() -> None:
    """Simultaneous stalls are subtracted once, and stalls before the due time are not."""
    lateness, machine = Lateness(), Stalls()
    lateness.note(10.0, 10.5)
    lateness.own.note(9.0, 10.1)
    lateness.own.note(10.2, 10.3)
    machine.note(10.15, 10.3)
    machine.note(20.0, 30.0)

    assert round(lateness.latest(), 9) == 0.5
    assert round(lateness.latest_net(machine), 9) == 0.3
    assert round(lateness.latest_net(Stalls()), 9) == 0.3


def test_without_a_stall_a_delivery_stays_late() -> None:
    """A late delivery stays late if neither the machine nor the proof stalled."""
    lateness = Lateness()
    lateness.note(1.0, 1.25)

    assert lateness.latest_net(Stalls()) == 0.25
    assert Lateness().latest_net(Stalls()) == 0.0


def test_notes_of_the_sleeping_process_are_read_by_lines(tmp_path: Path) -> None:
    """The sleeping process's notes are read up to the last complete line."""
    with sleeping(tmp_path) as notes:
        assert notes.exists()
    notes.write_bytes(b"1.0 1.5\n2.0 2.25\n3.0 3.")
    stalls = stalls_of(notes)

    assert (stalls.begins, stalls.ends) == ([1.0, 2.0], [1.5, 2.25])
