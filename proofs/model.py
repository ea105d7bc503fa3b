"""Compares channels with a small model in random sequences of events: `make model`.

Hypothesis generates the sequences and looks for a counterexample. The model and its rules are in
`tests/broker/channel_model.py`: one dictionary per channel, index -> (place, attempts, due). This
proof adds rules: a power cut after a clean stop, a checkpoint of the ledger, and phases of higher
load. It runs more and longer sequences than the tests.

The control runs the same with one guard of sparq switched off (`simulate_parts/guards.py`):
hypothesis must find a counterexample.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from tests.broker import channel_model

from proofs.outcome import Outcome, Plan, progress, run
from proofs.simulate_parts.guards import GUARDS
from sparq.protocol import commands

PROMISES = ("P3", "P4", "P10")
STEPS = 50
SHARE = 125
"""Examples per call of hypothesis."""
CONTROL_EXAMPLES = 500
CONTROLS = ("notes of FINs", "due times", "attempts")


class Found(NamedTuple):
    """Results of some examples.

    Attributes:
        examples: number of examples.
        steps: number of executed rules.
        story: hypothesis' text about the example that failed; empty if none failed.
    """

    examples: int
    steps: int
    story: str


class Stories(channel_model.Channels):
    """The state machine of the tests, with more rules."""

    examples = 0
    steps = 0

    @rule(ready=st.integers(1, 9), count=st.integers(1, 20), defer_s=st.sampled_from([0, 0, 5]))
    def rush(self, ready: int, count: int, defer_s: int) -> None:
        """Every client sends RDY, and messages are published."""
        for clients in self.clients.values():
            for client in clients:
                client.say(commands.rdy(ready))
        self.publish(count=count, size=9, defer_s=defer_s)

    @rule(name=st.sampled_from(channel_model.CHANNELS), step=st.integers(1, 3))
    def finish_many(self, name: str, step: int) -> None:
        """Finish every message in flight, every second one, or every third one."""
        places = self.model[name].places
        for client in self.clients[name]:
            theirs = [index for index, place in sorted(places.items()) if place.owner is client]
            run = [i for i in theirs if places[i].where == channel_model.IN_FLIGHT][::step]
            for index in run:
                places[index].where = channel_model.DONE
            if run:
                client.say(b"".join(commands.fin(self.id_of(index)) for index in run))
                assert client.answers() == []
        self.settle()

    @rule(crash_seed=st.integers(0, 99))
    def stop_and_lose_power(self, crash_seed: int) -> None:
        """Stop cleanly, which syncs everything, then cut the power: nothing may be lost."""
        self.harness.close()
        self.harness.disk = self.harness.disk.crash(crash_seed)
        self.restart(clean=False)

    @rule()
    def write_checkpoint(self) -> None:
        """Replace the entries of the ledger by a checkpoint of their state."""
        self.harness.checkpoint("t")
        self.settle()

    @invariant()
    def counted(self) -> None:
        """Count a step."""
        type(self).steps += 1

    def teardown(self) -> None:
        """Count an example."""
        type(self).examples += 1
        type(self).steps -= 1


def find_counterexample(chance: int, examples: int) -> Found:
    """Look for a counterexample: a sequence in which sparq and the model disagree."""

    class Machine(Stories):
        pass

    seed(chance)(Machine)
    quiet = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            run_state_machine_as_test(Machine, settings=quiet)
    except Exception as error:  # an assertion of the model, or any exception of sparq
        story = "\n".join([*getattr(error, "__notes__", []), told.getvalue(), repr(error)])
        return Found(Machine.examples, Machine.steps, story)
    return Found(Machine.examples, Machine.steps, "")


def without(name: str, chance: int) -> Found:
    """Look for a counterexample with a guard switched off."""
    guard = next(guard for guard in GUARDS if guard.name == name)
    with guard.off():
        return find_counterexample(chance, CONTROL_EXAMPLES)


def prove(plan: Plan) -> Outcome:
    """Run the planned number of examples, then the controls."""
    shares = [min(SHARE, plan.count - first) for first in range(0, plan.count, SHARE)]
    seeds = range(plan.seed, plan.seed + len(shares))
    controls = CONTROLS if plan.control else ()
    if len(shares) > 1:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            found = []
            for some in pool.map(find_counterexample, seeds, shares):
                found.append(some)
                progress(f"examples {sum(each.examples for each in found):,} of {plan.count:,}")
            shown = list(pool.map(without, controls, repeat(plan.seed)))
    else:
        found = list(map(find_counterexample, seeds, shares))
        shown = list(map(without, controls, repeat(plan.seed)))
    stories = [some.story for some in found if some.story]
    for story in stories[:1]:
        print(f"\r{story}")
    examples, steps = sum(some.examples for some in found), sum(some.steps for some in found)
    figures = (
        f"examples {examples:,} of up to {STEPS} steps · steps {steps:,} · "
        f"counterexamples {len(stories):,}"
    )
    control = " · ".join(
        f"without {name}: "
        + (f"counterexample in example {some.examples:,}" if some.story else "NONE")
        for name, some in zip(controls, shown, strict=True)
    )
    held = not stories and all(some.story for some in shown)
    return Outcome(PROMISES, figures, held, control=control)


if __name__ == "__main__":
    sys.exit(run("model", prove, count=1_000, of=f"examples, of up to {STEPS} steps each"))
