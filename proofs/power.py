"""Power cuts of an nsqd under load, and a count of the losses: `make power`. Needs root.

nsqd's data path is a file system of its own (ext4, or another kind with FS=), in an image file
mounted through a loop device. A cut copies the image while nsqd is stopped: writes that had not
reached the device are not in the copy. The copy is mounted, which replays its journal, opened by
the broker in this process, drained, and compared with what publishers and consumers had received by
then. `make simulate` covers data that a drive's own cache would lose.

With `--sync-every=1` no acknowledged message may be lost; with 2500 at most 2,500 messages per
topic and cut. A FIN that was answered longer ago than `--sync-timeout` may not be undone, no MPUB
may be split, and no index may be used twice. The control never syncs: it must lose messages.

Everything runs in namespaces of its own: however the proof ends, its processes end with it, and it
leaves no mount and no loop device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from proofs import outcome
from proofs.file_systems import APART, Disks, lacking
from proofs.outcome import Outcome, Plan, skipped
from proofs.workload import ROOT

PROMISES = ("P2", "P3", "P9", "P15")
RELAXED_LOST_MAX = 2_500


def cut_apart(plan: Plan, folder: Path) -> dict[str, Any]:
    """Run all cuts in namespaces of their own, and return the results."""
    words = [*APART, sys.executable, "-m", "proofs.power_parts.inside", str(folder)]
    words += [f"--seed={plan.seed}", f"--count={plan.count}"]
    words += ["--control"] if plan.control else []
    words += [f"--kind={plan.file_system or 'ext4'}"]
    subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    found = json.loads((folder / "outcome.json").read_text())
    assert isinstance(found, dict)
    return found


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    lack = lacking(plan.file_system or "ext4")
    if lack:
        return skipped(PROMISES, lack)
    with tempfile.TemporaryDirectory(prefix="sparq-power-") as folder:
        found = cut_apart(plan, Path(folder))
    if "skipped" in found:
        return skipped(PROMISES, found["skipped"])
    strict, relaxed = found["strict"], found["relaxed"]
    wrong = sum(sums["wrong"] + sums["reused"] for sums in (strict, relaxed))
    figures = (
        f"power cuts: {strict['cuts']:,} · acknowledged {strict['acknowledged']:,} · "
        f"acknowledged lost with sync-every=1: {strict['lost']:,} · "
        f"with sync-every=2500 ({relaxed['cuts']:,} cuts): at most {relaxed['lost_most']:,} "
        f"per cut · split MPUBs {strict['split'] + relaxed['split']:,} · "
        f"corrupt {strict['corrupt'] + relaxed['corrupt']:,} · "
        f"ghosts {strict['ghosts'] + relaxed['ghosts']:,} · "
        f"indexes reused {strict['reused'] + relaxed['reused']:,} · "
        f"returned after a synced FIN {strict['returned'] + relaxed['returned']:,} "
        f"of {strict['finished'] + relaxed['finished']:,}"
    )
    held, control = not wrong and not strict["lost"] and strict["acknowledged"] > 0, ""
    held = held and relaxed["lost_most"] <= RELAXED_LOST_MAX
    if plan.control:
        unsynced = found["control"]
        control = f"without any sync: {unsynced['cuts']:,} cuts, lost {unsynced['lost']:,}"
        held = held and unsynced["lost"] > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    strict = "power cuts with sync-every=1"
    sys.exit(outcome.run("power", prove, count=300, of=strict, disks=Disks.OWN))
