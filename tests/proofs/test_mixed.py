"""The mixed run for some seconds, with its controls; and what is held to be flat."""

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
    """What was seen of a server that is not there."""
    server = cast(NsqdServer, SimpleNamespace(process=None, folder=Path("none")))
    return Watch(server, 0.0, 0.0, samples)


def samples(seconds: int, *, memory_a_second: int = 0, files_a_second: int = 0) -> list[Sample]:
    """One a second of a process that takes so much more each second."""
    return [
        Sample(at, at, memory_a_second * at, 30 + files_a_second * at, 6, 50)
        for at in range(seconds)
    ]


@pytest.mark.timeout(240)
def test_everything_at_once_loses_nothing() -> None:
    """Topics come and go, nsqd is killed: what is acknowledged comes, and nothing grows."""
    steady, killed = attempt(seed=20261122, seconds=SECONDS)

    assert steady.is_right, [steady.line(), *steady.lost]
    assert killed.is_right, [killed.line(), *killed.lost]
    # A process that is killed so soon may be seen at no age at which another was seen.
    grown = [growth.line() for growth in killed.growths if not growth.is_flat]
    assert steady.is_flat and not grown, [steady.line(), *grown]
    assert min(steady.lives, killed.lives) > 0
    assert killed.deaths["kill"] + killed.deaths["stop"] > 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_run_finds_a_leak_and_a_late_commit() -> None:
    """What a deleted topic leaves is seen to grow; a write behind the OK loses messages."""
    leaking, late = attempt(seed=20261122, seconds=SECONDS, modules=(LEAKING, LATE_COMMIT))

    assert {"memory", "open_files"} <= {g.name for g in leaking.growths if not g.is_flat}
    assert late.counts["lost"] > 0, late.line()


def test_an_hour_may_grow_by_little() -> None:
    """A slow leak is within what an allocator wavers by, one of 30 MiB an hour is not."""
    hour = 3600
    slow = watch(samples(hour, memory_a_second=MIB // 600)).growth(hour)
    fast = watch(samples(hour, memory_a_second=30 * MIB // hour)).growth(hour)
    files = watch(samples(hour, files_a_second=1)).growth(hour)

    assert all(growth.is_flat for growth in slow)
    assert ["memory"] == [growth.name for growth in fast if not growth.is_flat]
    assert ["open_files"] == [growth.name for growth in files if not growth.is_flat]
    assert fast[0].bound > MEMORY_BYTES


def test_processes_are_compared_at_the_same_age() -> None:
    """What a process has a moment after its start, or long after it, is not counted."""
    old = [Sample(at, age=100, memory=500 * MIB, open_files=9, threads=2, data_files=1)
           for at in range(600)]  # fmt: skip
    young = [each._replace(age=5, memory=20 * MIB) for each in old]

    assert [] == watch(old).growth(600, ages=(2, 12))
    grown = watch([*old[300:], *young]).growth(600, ages=(2, 12))
    assert 20 * MIB == grown[0].first == grown[0].last


def test_what_is_found_decides() -> None:
    """Each thing that must not be is told; what may be lost where a topic was emptied is not."""
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
    good.revenants.append("name.1")
    assert not good.is_right
