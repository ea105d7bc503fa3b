"""In which ways a run on the cluster is made hard, beside the kills."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

WORKER, DRIVER, NSQD = KINDS = ("worker", "driver", "nsqd")
LOST_COMMIT, OTHER_CORES = "lost commit", "other cores"
STALL, FAILURE = "stall", "failure"

KILLS = (*KINDS, LOST_COMMIT, OTHER_CORES)
"""Steps that are a kill; the others are something else."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    # Stages of one task, too: what a batch writes is often one.
    "spark.speculation.task.duration.threshold": "1s",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way.

    Attributes:
        name: as `--only` takes it.
        text: what it is, for people.
        driver: the step that a kill of the driver is.
        others: steps that are no kills, each so often.
        spark: further options of Spark.
    """

    name: str
    text: str
    driver: str = DRIVER
    others: tuple[str, ...] = ()
    spark: dict[str, str] = field(default_factory=dict)

    def steps(self, kills: int, chance: random.Random) -> list[str]:
        """What happens to a run, in an order by chance, with so many kills of all kinds."""
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
CONTROL = Variant("control", "batches that do not know that they are run again", driver=LOST_COMMIT)
