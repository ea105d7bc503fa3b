"""A mixed run of some seconds, its controls, and the definition of growth."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from proofs.checker import Verdict
from proofs.mixed import LATE_COMMIT, LEAKING, Findings, attempt
from proofs.mixed_samples import BOUNDS, MEMORY_BYTES, MIB, Growth, Sample, Watch

from tests.support.servers import NsqdServer

SECONDS = 18.0


def watch(samples: list[Sample]) -> Watch:
    """Return a watch with samples, but without a server."""
    server = cast(NsqdServer, SimpleNamespace(process=None, folder=Path("none")))
    return Watch(server, 0.0, 0.0, samples)


def samples(seconds: int, *, memory_a_second: int = 0, files_a_second: int = 0) -> list[Sample]:
    """Return one sample a second, with memory and open files that grow each second."""
    return [
        Sample(at, at, memory_a_second * at, 30 + files_a_second * at, 6, 50)
        for at in range(seconds)
    ]


@pytest.mark.timeout(240)
def test_the_mixed_run_loses_nothing() -> None:
    """Despite deleted topics and kills, acknowledged messages arrive and nothing grows."""
    steady, killed = attempt(seed=20261122, seconds=SECONDS)

    assert steady.is_right, [steady.line(), *steady.lost]
    assert killed.is_right, [killed.line(), *killed.lost]
    # A process killed that early may have no sample at an age at which another process has one.
    grown = [growth.line() for growth in killed.growths if not growth.is_flat]
    assert steady.is_flat and not grown, [steady.line(), *grown]
    assert min(steady.lives, killed.lives) > 0
    assert killed.deaths["kill"] + killed.deaths["stop"] > 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_run_finds_a_leak_and_a_late_commit() -> None:
    """Files and memory left by deleted topics are growth; a write after the OK loses messages."""
    leaking, late = attempt(seed=20261122, seconds=SECONDS, modules=(LEAKING, LATE_COMMIT))

    assert {"memory", "open_files"} <= {g.name for g in leaking.growths if not g.is_flat}
    assert late.counts["lost"] > 0, late.line()


def test_slight_growth_is_allowed() -> None:
    """A slow leak is within an allocator's variation; 30 MiB an hour is not."""
    hour = 3600
    slow = watch(samples(hour, memory_a_second=MIB // 600)).growth(hour)
    fast = watch(samples(hour, memory_a_second=30 * MIB // hour)).growth(hour)
    files = watch(samples(hour, files_a_second=1)).growth(hour)

    assert all(growth.is_flat for growth in slow)
    assert ["memory"] == [growth.name for growth in fast if not growth.is_flat]
    assert ["open_files"] == [growth.name for growth in files if not growth.is_flat]
    assert fast[0].bound > MEMORY_BYTES


def test_processes_are_compared_at_the_same_age() -> None:
    """Samples of very young or old processes are not counted."""
    old = [Sample(at, age=100, memory=500 * MIB, open_files=9, threads=2, data_files=1)
           for at in range(600)]  # fmt: skip
    young = [each._replace(age=5, memory=20 * MIB) for each in old]

    assert [] == watch(old).growth(600, ages=(2, 12))
    grown = watch([*old[300:], *young]).growth(600, ages=(2, 12))
    assert 20 * MIB == grown[0].first == grown[0].last


def test_each_finding_fails_the_proof() -> None:
    """Each violation is found; a loss is not one if the topic was emptied."""
    whole = Verdict(10, 10, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    good, emptied, lost = Findings(), Findings(), Findings()
    good.take(whole, may_lose=True, may_return=False)
    emptied.take(whole, may_lose=True, may_return=True)
    lost.take(whole, may_lose=False, may_return=False)

    assert good.is_right and emptied.is_right
    assert not lost.is_right
    assert not Findings().is_right and not good.is_flat
    good.growths = [Growth("threads", 5, 5 + BOUNDS["threads"], BOUNDS["threads"])]
    assert good.is_flat
    good.present_after_deletion.append("name.1")
    assert not good.is_right
