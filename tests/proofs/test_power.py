"""A few power cuts and the control."""

import subprocess
import sys
from pathlib import Path

import pytest
from proofs.daemon_fixture import ROOT, wait_until
from proofs.outcome import Plan

from proofs import file_systems, power

DIES_MOUNTED = """
import os, sys
from pathlib import Path
from proofs.file_systems import make, run
from proofs.power_parts import image

folder = Path(sys.argv[1])
run("mount", "-t", "tmpfs", "tmpfs", folder)
make(folder / "left", "ext4", 128)
with image.mounted(folder / "left", folder / "at", "ext4") as device:
    print(device, flush=True)
    os._exit(3)
"""


@pytest.mark.timeout(300)
def test_acknowledged_messages_survive_a_power_cut() -> None:
    """With each sync policy, two power cuts lose no message that the policy protects.

    Without any sync the same check finds lost messages.
    """
    outcome = power.prove(Plan(seed=20261121, count=2))
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.held, (outcome.figures, outcome.control)
    assert "acknowledged lost with sync-every=1: 0" in outcome.figures


def test_nothing_stays_mounted(tmp_path: Path) -> None:
    """A proof that dies with its disk mounted leaves no mount and no loop device."""
    if file_systems.lacking("ext4"):
        pytest.skip(file_systems.lacking("ext4"))
    words = [*file_systems.APART, sys.executable, "-c", DIES_MOUNTED, str(tmp_path)]
    died = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT)
    device = died.stdout.strip()
    if not device:
        pytest.skip("needs loop mounts")
    backing = Path(f"/sys/block/{device}/loop/backing_file")

    assert died.returncode == 3
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    wait_until(lambda: not serves(backing, tmp_path), "let go of")


def test_killing_a_proof_ends_its_processes(tmp_path: Path) -> None:
    """Killing a proof also ends the processes in its namespaces."""
    if file_systems.lacking("ext4"):
        pytest.skip(file_systems.lacking("ext4"))
    beat = tmp_path / "beat"
    inner = f"while :; do echo x >> {beat}; sleep 0.02; done"
    outer = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    words = [sys.executable, "-c", outer, *file_systems.APART, "sh", "-c", inner]
    with subprocess.Popen(words) as started:
        wait_until(beat.exists, "begun")
        started.kill()
    sizes: list[int] = []

    def has_ended() -> bool:
        sizes.append(beat.stat().st_size)
        return len(sizes) > 20 and len(set(sizes[-20:])) == 1

    wait_until(has_ended, "ended")


def serves(backing: Path, folder: Path) -> bool:
    """Whether a loop device still uses a file of this folder."""
    try:
        text = backing.read_text().strip()
    except OSError:
        return False
    return text.startswith(str(folder)) or text == "/left"
