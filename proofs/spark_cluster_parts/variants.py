"""The ways in which a run on the cluster is made hard, in addition to the kills."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

WORKER, DRIVER, NSQD = KINDS = ("worker", "driver", "nsqd")
LOST_COMMIT, OTHER_CORES = "lost commit", "other cores"
STALL, FAILURE = "stall", "failure"

KILLS = (*KINDS, LOST_COMMIT, OTHER_CORES)
"""Steps that kill something; the other steps do not."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    # Also in stages with only one task: the writing stage of a batch often has just one.
    "spark.speculation.task.duration.threshold": "1s",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way.

    Attributes:
        name: its name for `--only`.
        text: a description for people.
        driver: the step that kills the driver.
        others: steps that kill nothing, once for each time they are listed.
        spark: further options of Spark.
    """

    name: str
    text: str
    driver: str = DRIVER
    others: tuple[str, ...] = ()
    spark: dict[str, str] = field(default_factory=dict)

    def steps(self, kills: int, chance: random.Random) -> list[str]:
        """Return the steps of a run, in random order, with `kills` kills of all kinds together."""
        kinds = (self.driver, WORKER, NSQD)
        steps = [kinds[at % len(kinds)] for at in range(kills)]
        steps += self.others
        chance.shuffle(steps)
        return steps


VARIANTS = (
    Variant("kills", "kills of workers, drivers and nsqds"),
    Variant(
        "speculation",
        "with speculation, and executors that stand still for seconds",
        others=(STALL,) * 3,
        spark=SPECULATION,
    ),
    Variant("failure", "with tasks that fail once after they have written", others=(FAILURE,) * 2),
    Variant("commits", "each killed driver loses the last file of `commits`", driver=LOST_COMMIT),
    Variant("cores", "each killed driver comes back on other cores", driver=OTHER_CORES),
)
CONTROL = Variant("control", "commits without transactions", driver=LOST_COMMIT)
