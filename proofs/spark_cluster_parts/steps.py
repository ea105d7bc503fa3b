"""Steps that disturb a run: each does its damage, repairs it, and returns a text about it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from proofs.spark_cluster_parts.checkpoint import QUERIES
from proofs.spark_cluster_parts.driver import PARTS
from proofs.spark_cluster_parts.programs import Program, is_java
from proofs.spark_cluster_parts.variants import (
    DRIVER,
    FAILURE,
    LOST_COMMIT,
    NSQD,
    OTHER_CORES,
    STALL,
    WORKER,
)
from sparq.program.supervised import send

if TYPE_CHECKING:
    from proofs.spark_cluster_parts.cluster_run import ClusterRun

DOWN_SECONDS = (0.0, 3.0)
NSQD_SECONDS = (0.0, 3.0)
STALL_SECONDS = (2.0, 5.0)
EXECUTOR_SECONDS = 300.0
SETTLED_SECONDS = 120.0
AGAIN_SECONDS = 600.0
CORES = (2, 1)
"""Each worker's cores after a step, in turn; at the start a worker has one."""


def kill_worker(run: ClusterRun) -> str:
    """kill -9 a worker and its executors in the middle of a batch."""
    run.wait("executor", lambda: workers_with_executors(run), EXECUTOR_SECONDS)
    place = run.wait_for_batch()
    worker = run.chance.choice(workers_with_executors(run) or run.spark.workers)
    count = len(executors_of(worker))
    worker.kill()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    return f"{worker.name} and {count} executors {place}"


def kill_driver(run: ClusterRun) -> str:
    """kill -9 the driver, or a part of it, in the middle of a batch."""
    place = run.wait_for_batch()
    part = run.chance.choice(PARTS)
    run.driver.kill(part)
    run.driver.start()
    return f"the driver's {part} {place}"


def kill_nsqd(run: ClusterRun) -> str:
    """kill -9 an nsqd, at a random moment."""
    time.sleep(run.chance.uniform(*NSQD_SECONDS))
    nsqd = run.chance.choice(run.nsq.nsqds)
    assert nsqd.process is not None
    nsqd.process.send_signal(signal.SIGKILL)
    nsqd.process.wait()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    run.nsq.restart_dead()
    return f"{nsqd.name} at {run.feed.published:,} clicks"


def lose_commits(run: ClusterRun) -> str:
    """kill -9 the driver between two batches, and delete the last file of `commits`.

    The same state is left by a driver that dies after its sink has written, and before Spark has
    recorded the batch as done.
    """
    query = QUERIES[run.steps_done[LOST_COMMIT] % len(QUERIES)]
    deadline = time.monotonic() + SETTLED_SECONDS
    while True:
        run.wait_for_driver()
        time.sleep(run.chance.uniform(0.0, 0.2))
        run.driver.program.send(signal.SIGSTOP)
        settled = run.checkpoints.settled()
        is_late = time.monotonic() > deadline
        # All three queries, if they are between batches at the same moment, in time.
        if len(settled) == len(QUERIES) or (query in settled and is_late):
            break
        run.driver.program.send(signal.SIGCONT)
        assert time.monotonic() < deadline + SETTLED_SECONDS, run.told(
            "no query is between batches"
        )
    run.driver.kill("group")
    lost = {query: run.checkpoints.forget(query) for query in settled}
    run.driver.start()
    for name, batch in lost.items():
        run.wait(
            f"batch {batch} of {name} again",
            partial(run.checkpoints.is_done, name, batch),
            AGAIN_SECONDS,
        )
    batches = " and ".join(f"batch {batch} of {name}" for name, batch in lost.items())
    return f"the driver, which then did {batches} again"


def change_cores(run: ClusterRun) -> str:
    """kill -9 the driver in the middle of a batch; it restarts on a cluster with other cores."""
    place = run.wait_for_batch()
    part = run.chance.choice(PARTS)
    run.driver.kill(part)
    run.spark.cores = CORES[run.steps_done[OTHER_CORES] % len(CORES)]
    for worker in run.spark.workers:
        worker.kill()
        run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    run.driver.start()
    return f"the driver's {part} {place}, back on {run.spark.cores} cores a worker"


def stall(run: ClusterRun) -> str:
    """Stop a worker's executors for some seconds in the middle of a batch, then resume them."""
    run.wait("executor", lambda: workers_with_executors(run), EXECUTOR_SECONDS)
    place = run.wait_for_batch()
    worker = run.chance.choice(workers_with_executors(run) or run.spark.workers)
    seconds = run.chance.uniform(*STALL_SECONDS)
    stopped = worker.started()
    send(stopped, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        send(stopped, signal.SIGCONT)
    return f"the executors of {worker.name} stood still for {seconds:.1f} s {place}"


def want_failures(run: ClusterRun) -> str:
    """Make the next tasks fail after they have written."""
    assert run.failures is not None
    run.failures.want()
    return "tasks were to fail after they had written"


STEPS: dict[str, Callable[[ClusterRun], str]] = {
    WORKER: kill_worker,
    DRIVER: kill_driver,
    NSQD: kill_nsqd,
    LOST_COMMIT: lose_commits,
    OTHER_CORES: change_cores,
    STALL: stall,
    FAILURE: want_failures,
}


def executors_of(worker: Program) -> list[int]:
    """Return the JVMs that a worker has started."""
    return [pid for pid in worker.started() if is_java(pid)]


def workers_with_executors(run: ClusterRun) -> list[Program]:
    """Return the workers that currently have an executor."""
    return [worker for worker in run.spark.workers if executors_of(worker)]
