"""DiskThreads: disk work runs in threads, its results arrive in the loop; barriers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

import pytest

from sparq.broker.turn import TopicTask
from sparq.log.disk import DiskError
from sparq.log.journal import Journal
from sparq.log.task import TaskKind
from sparq.nsqd.turns import DiskThreads
from sparq.testing import MemoryDisk
from tests.support.waiting import let_all_run, until


class FakeTask:
    """A task that waits for `go` and records the thread that ran it."""

    def __init__(self, kind: TaskKind, *, held: bool = False) -> None:
        self.kind = kind
        self.error: DiskError | None = None
        self.thread = ""
        self.name = ""
        self.go = threading.Event()
        if not held:
            self.go.set()

    def run(self) -> None:
        """Wait up to 20 s for `go`; record the thread."""
        assert self.go.wait(20)
        self.thread = threading.current_thread().name


@pytest.fixture
async def turns() -> list[str]:
    """Turns of the loop and the tasks that they took over, in order."""
    return []


@pytest.fixture
async def threads(turns: list[str]) -> AsyncIterator[DiskThreads]:
    """DiskThreads in this test's loop."""
    loop = asyncio.get_running_loop()
    journal = Journal(MemoryDisk(), "/data")

    def wake() -> None:
        assert threading.current_thread() is threading.main_thread()
        turns.append("turn")
        record_turn(turns, made.take_finished())
        made.open_barriers()

    made = DiskThreads(loop, wake, journal.run)
    yield made
    await loop.run_in_executor(None, made.stop)


def record_turn(turns: list[str], finished: list[TopicTask]) -> None:
    """Note which tasks were taken over."""
    for each in finished:
        assert isinstance(each.task, FakeTask)
        turns.append(each.task.name)


def topic_task(task: FakeTask, name: str) -> TopicTask:
    """Give the task this name, and wrap it as the broker does."""
    task.name = name
    return TopicTask(task, lambda _now: None)


async def wait_until_finished(threads: DiskThreads) -> None:
    """Wait up to 20 s for all tasks submitted so far."""
    async with asyncio.timeout(20):
        await threads.barrier()


async def test_each_kind_of_task_has_its_thread(threads: DiskThreads, turns: list[str]) -> None:
    """Commits, reads, inspections and housekeeping each have a thread; turns get the results."""
    tasks = [FakeTask(kind) for kind in TaskKind]
    threads.submit([topic_task(task, task.kind.value) for task in tasks])

    await wait_until_finished(threads)

    assert [task.thread.rstrip("0123456789-") for task in tasks] == [
        "nsqd-commit",
        "nsqd-commit",
        "nsqd-read",
        "nsqd-inspect",
        "nsqd-housekeeping",
    ]
    done = [name for name in turns if name != "turn"]
    assert sorted(done) == sorted(kind.value for kind in TaskKind)
    assert 1 <= turns.count("turn") <= len(tasks)


async def test_commits_keep_their_order(threads: DiskThreads, turns: list[str]) -> None:
    """200 commits are finished in the order in which they were submitted."""
    threads.submit([topic_task(FakeTask(TaskKind.COMMIT), str(number)) for number in range(200)])

    await wait_until_finished(threads)

    assert [name for name in turns if name != "turn"] == [str(number) for number in range(200)]


async def test_a_barrier_waits_only_for_earlier_work(
    threads: DiskThreads, turns: list[str]
) -> None:
    """A barrier opens while later work is still running."""
    first, later = FakeTask(TaskKind.COMMIT, held=True), FakeTask(TaskKind.READ, held=True)
    threads.submit([topic_task(first, "first")])
    barrier = asyncio.create_task(threads.barrier())
    await let_all_run()
    threads.submit([topic_task(later, "later")])
    assert not barrier.done()

    first.go.set()
    async with asyncio.timeout(20):
        await barrier

    assert "first" in turns
    assert "later" not in turns
    later.go.set()
    await wait_until_finished(threads)


async def test_only_a_single_small_commit_runs_inline(threads: DiskThreads) -> None:
    """Two tasks, a read, a large write, or a commit after an unfinished one use the threads."""
    task = FakeTask(TaskKind.COMMIT)
    commit = topic_task(task, "inline")
    held = FakeTask(TaskKind.COMMIT, held=True)

    assert threads.may_run_inline([commit], 100)
    assert not threads.may_run_inline([commit, commit], 100)
    assert not threads.may_run_inline([topic_task(FakeTask(TaskKind.READ), "read")], 100)
    assert not threads.may_run_inline([commit], 1 << 20)
    threads.submit([topic_task(held, "held")])
    assert not threads.may_run_inline([commit], 100)

    held.go.set()
    await wait_until_finished(threads)
    threads.run_inline([commit])
    assert task.thread == threading.main_thread().name


async def test_small_writes_run_inline_after_a_slow_sync(
    threads: DiskThreads,
) -> None:
    """After a slow sync, commits run in the thread; small writes without sync stay inline."""
    slow = FakeTask(TaskKind.COMMIT, held=True)
    threading.Timer(0.1, slow.go.set).start()
    threads.run_inline([topic_task(slow, "slow")])
    task = FakeTask(TaskKind.WRITE)
    write = topic_task(task, "write")

    assert not threads.may_run_inline([topic_task(FakeTask(TaskKind.COMMIT), "commit")], 100)
    assert threads.may_run_inline([write, write, write], 200_000)
    assert not threads.may_run_inline([write], 1 << 20)
    assert not threads.may_run_inline([write] * 100, 100)
    assert not threads.may_run_inline([write, topic_task(FakeTask(TaskKind.READ), "read")], 100)
    held = FakeTask(TaskKind.WRITE, held=True)
    threads.submit([topic_task(held, "held")])
    assert not threads.may_run_inline([write], 100)

    held.go.set()
    await wait_until_finished(threads)
    threads.run_inline([write, write])
    assert task.thread == threading.main_thread().name


async def test_the_loop_wakes_after_a_turn_before_a_wake_up() -> None:
    """After a turn took over a task before its wake-up, the next task still wakes the loop."""
    loop = asyncio.get_running_loop()
    turns: list[int] = []

    def wake() -> None:  # like a turn, which takes over only what is finished
        turns.append(len(made.finished) and len(made.take_finished()))

    class QueueWithTurns(deque[tuple[int, TopicTask]]):
        """A queue in which a turn follows each append immediately, before the thread's wake-up."""

        def append(self, entry: tuple[int, TopicTask]) -> None:
            super().append(entry)
            made.take_finished()
            made.finished = deque()

    made = DiskThreads(loop, wake, Journal(MemoryDisk(), "/data").run)
    made.finished = QueueWithTurns()
    made.submit([TopicTask(FakeTask(TaskKind.READ), lambda _now: None)])
    await until(lambda: turns == [0])

    made.submit([TopicTask(FakeTask(TaskKind.READ), lambda _now: None)])
    await until(lambda: turns == [0, 1])
    await loop.run_in_executor(None, made.stop)
