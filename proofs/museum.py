"""Runs the nine scenarios of loss_scenarios.py on sparq's nsqd and on Go's nsqd: `make museum`.

sparq's nsqd must lose nothing. Go's nsqd is the control, if there is one: NSQD_GO is the path of
its program. Without it, the control is sparq's nsqd with writes after the OK
(controls/late_commit.py), which must lose messages in L1. A scenario that cannot run on this
machine is skipped, and prints what it needs.
"""

from __future__ import annotations

import os
import shutil
import sys

from proofs import outcome
from proofs.loss_scenarios import SCENARIOS, Loss, Needs, Scenario, run_scenario
from proofs.outcome import Outcome, Plan, progress
from proofs.scenario_daemons import Maker, maker

PROMISES = ("P1", "P3", "P4", "P5", "P7", "P8", "P9")
LATE_COMMIT = "proofs.controls.late_commit"


def program_of_go() -> str:
    """Path of Go's nsqd; empty if there is none."""
    found = shutil.which(os.environ.get("NSQD_GO", ""))
    return os.path.abspath(found) if found else ""


def shown(scenario: Scenario, make: Maker, whose: str) -> Loss | None:
    """Run a scenario and print its result; None: this machine cannot run it."""
    progress(f"{scenario.number} {scenario.title}: {whose}")
    try:
        loss = run_scenario(scenario, make)
    except Needs as needs:
        print(f"  {scenario.number} {scenario.title}: {whose}: skipped: {needs}")
        return None
    print(f"  {scenario.number} {scenario.title}: {whose}: {loss.text}", flush=True)
    return loss


def prove(plan: Plan) -> Outcome:
    """Run the scenarios on sparq's nsqd, then the control."""
    scenarios = SCENARIOS[: plan.count]
    go = program_of_go()
    ours = [shown(scenario, maker(), "sparq") for scenario in scenarios]
    lost = sum(loss is not None and loss.lost > 0 for loss in ours)
    figures = f"NSQ loss modes: {len(ours) - ours.count(None)} · on ours {lost}"
    if None in ours:
        figures += f" · not shown here {ours.count(None)}"
    held, control = not lost and ours.count(None) < len(ours), ""
    if plan.control and go:
        theirs = [shown(scenario, maker(go), "Go's nsqd") for scenario in scenarios]
        reproduced = sum(loss is not None and loss.lost > 0 for loss in theirs)
        figures += f" · reproduced on nsqd {reproduced}"
        control = f"Go's nsqd: messages lost or promises broken in {reproduced} of {len(theirs)}"
        held = held and reproduced > 0
    elif plan.control:
        figures += " · reproduced on nsqd: not tried, NSQD_GO names none"
        late = run_scenario(SCENARIOS[0], maker(LATE_COMMIT))
        control = f"{SCENARIOS[0].number} with the write after the OK: {late.text}"
        held = held and late.lost > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("museum", prove, count=len(SCENARIOS), of="scenarios, from the first on"))
