"""client.lone: the task of the only pending publish resumes where its answer is read."""

import asyncio
from contextvars import ContextVar

import pytest

from sparq.client import Producer
from sparq.client.lone import AwaitedResult
from sparq.client.publish import Receipt
from tests.client.scripted import scripted

RECEIPT = Receipt("127.0.0.1:4150")
NAME: ContextVar[str] = ContextVar("NAME", default="")


async def wait(lone: AwaitedResult, seen: list[object]) -> None:
    try:
        seen.append(await lone)
    except BaseException as error:
        seen.append(error)
        raise


async def test_set_result_in_a_callback_resumes_the_task_immediately() -> None:
    """``set_result`` in a loop callback resumes the task immediately, in the task's context."""
    loop, seen, after = asyncio.get_running_loop(), list[object](), list[int]()
    lone = AwaitedResult(loop)

    async def named() -> None:
        NAME.set("task")
        await lone
        seen.append(NAME.get())
        assert asyncio.current_task() is task

    def tell() -> None:
        lone.set_result(RECEIPT)
        after.append(len(seen))

    task = asyncio.create_task(named())
    await asyncio.sleep(0)
    loop.call_soon(tell)
    await task
    assert (seen, after) == (["task"], [1])
    assert lone.done() and not lone.cancelled()
    assert not lone.cancel()


async def test_set_result_inside_a_task_resumes_the_other_in_the_next_iteration() -> None:
    """``set_result`` inside a task resumes the waiting task in the next loop iteration."""
    lone, seen = AwaitedResult(asyncio.get_running_loop()), list[object]()
    task = asyncio.create_task(wait(lone, seen))
    await asyncio.sleep(0)
    lone.set_result(RECEIPT)
    assert seen == []
    await task
    assert seen == [RECEIPT]


async def test_awaiting_a_lone_with_a_result_does_not_wait() -> None:
    """Awaiting a ``AwaitedResult`` that has a result or an error does not wait."""
    lone, failed = (AwaitedResult(asyncio.get_running_loop()) for _ in range(2))
    lone.set_result(RECEIPT)
    failed.set_exception(OSError("gone"))
    assert await lone == RECEIPT
    with pytest.raises(OSError, match="gone"):
        await failed


async def test_set_exception_raises_in_the_waiting_task() -> None:
    """``set_exception`` raises the error in the waiting task."""
    lone, seen = AwaitedResult(asyncio.get_running_loop()), list[object]()
    task = asyncio.create_task(wait(lone, seen))
    await asyncio.sleep(0)
    lone.set_exception(error := OSError("gone"))
    await asyncio.wait([task])
    assert seen == [error]
    assert task.exception() is error


@pytest.mark.parametrize("early", [True, False])
async def test_cancelling_the_waiting_task_cancels_its_lone(early: bool) -> None:
    """Cancelling a task that waits cancels its ``AwaitedResult``, with the same message."""
    lone, seen = AwaitedResult(asyncio.get_running_loop()), list[object]()
    task = asyncio.create_task(wait(lone, seen))
    if not early:
        await asyncio.sleep(0)
        assert task.cancel("enough")
        await asyncio.wait([task])
        assert lone.cancelled() and lone.done()
        assert [str(each) for each in seen] == ["enough"]
    else:
        task.cancel()
        await asyncio.wait([task])
        assert not lone.done()
    assert task.cancelled()


async def test_a_timeout_cancels_a_lone() -> None:
    """`asyncio.timeout` cancels a ``AwaitedResult``, as it does a future."""
    lone = AwaitedResult(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await lone
    assert lone.cancelled()


def test_system_exit_in_the_resumed_task_ends_the_loop() -> None:
    """SystemExit in the resumed task ends the loop, not the callback that set the result."""
    results, tasks = list[bool](), list[asyncio.Task[None]]()

    async def leave(lone: AwaitedResult) -> None:
        await lone
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lone = AwaitedResult(loop)
        tasks.append(asyncio.create_task(leave(lone)))
        await asyncio.sleep(0)

        def tell() -> None:
            lone.set_result(RECEIPT)
            results.append(True)

        loop.call_soon(tell)
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert results == [True]
    assert isinstance(tasks[0].exception(), SystemExit)


async def test_sequential_publishes_use_lone() -> None:
    """Sequential publishes use ``AwaitedResult``; of 10 concurrent ones, at most one does."""
    made: list[int] = []

    class Counted(AwaitedResult):
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            made.append(1)
            super().__init__(loop)

    async with scripted() as [nsqd], Producer([nsqd.address]) as producer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sparq.client.producer.AwaitedResult", Counted)
            for _ in range(4):
                assert await producer.publish("t", b"x") == Receipt(nsqd.address)
            assert await producer.multi_publish("t", [b"x", b"y"]) == Receipt(nsqd.address)
            assert len(made) == 4
            for _ in range(3):
                await asyncio.gather(*(producer.publish("t", b"x") for _ in range(10)))
            assert len(made) <= 7
            assert (producer.published, producer.under_way) == (36, 0)
