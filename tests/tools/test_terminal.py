"""Standard streams whose other ends pause and close; keys and the progress line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator

import pytest

from sparq.program.logging import set_up
from sparq.tools.commands import ToolError
from sparq.tools.common import CLEAR, progress_shown
from sparq.tools.terminal import Pipe, keys_in
from tests.support.waiting import stays, until

Ends = tuple[int, int]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A pipe: (read end, write end)."""
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        try:
            os.close(end)
        except OSError:
            continue


async def test_written_data_is_read_in_order(ends: Ends) -> None:
    """More data than a pipe holds arrives in order, then the end."""
    reading, writing = ends
    data = os.urandom(1 << 20)
    output, source = Pipe(writing), Pipe(reading)

    async def write() -> None:
        for at in range(0, len(data), 300_000):
            await output.write(data[at : at + 300_000])
        os.close(writing)

    task = asyncio.create_task(write())
    pieces = []
    while piece := await source.read():
        pieces.append(piece)
    await task

    assert data == b"".join(pieces)


async def test_nonblocking_descriptors_are_waited_for(ends: Ends) -> None:
    """Another program may have made it non-blocking: reads and writes wait for it."""
    reading, writing = ends
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    data = bytes(1 << 20)
    task = asyncio.create_task(Pipe(writing).write(data))
    source = Pipe(reading)
    size = 0
    while size < len(data):
        size += len(await source.read())
    await task

    assert len(data) == size


async def test_the_event_loop_is_free_while_a_pipe_is_full(ends: Ends) -> None:
    """Reads and writes wait in their own threads; the event loop is free."""
    reading, writing = ends
    writes = asyncio.create_task(Pipe(writing).write(bytes(1 << 20)))
    other, other_end = os.pipe()
    reads = asyncio.create_task(Pipe(other).read())
    await stays(lambda: not writes.done() and not reads.done())

    os.write(other_end, b"x")
    assert b"x" == await reads
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        await writes
    os.close(other)
    os.close(other_end)


async def test_errors_are_raised_where_they_are_awaited() -> None:
    """A full disk, and a folder instead of a file, raise ToolError."""
    full = os.open("/dev/full", os.O_WRONLY)
    folder = os.open("/", os.O_RDONLY)
    with pytest.raises(ToolError, match="failed to write to standard output - No space left"):
        await Pipe(full).write(b"x")
    with pytest.raises(ToolError, match="failed to read standard input - Is a directory"):
        await Pipe(folder).read()
    os.close(full)
    os.close(folder)


async def test_a_cancelled_write_is_completed(ends: Ends) -> None:
    """The next write follows the cancelled one; both are complete."""
    reading, writing = ends
    output = Pipe(writing)
    first = asyncio.create_task(output.write(b"a" * 100_000))
    await until(lambda: select.select([reading], [], [], 0)[0])
    first.cancel()
    second = asyncio.create_task(output.write(b"b"))
    received = b""
    source = Pipe(reading)
    while len(received) < 100_001:
        received += await source.read()
    await second

    assert b"a" * 100_000 + b"b" == received


def test_an_endless_read_does_not_keep_the_program_running() -> None:
    """The reading thread does not keep the program running."""
    reading, writing = os.pipe()

    async def read() -> None:
        async with asyncio.timeout(0.01):
            await Pipe(reading).read()

    with pytest.raises(TimeoutError):
        asyncio.run(read())
    (thread,) = [each for each in threading.enumerate() if each.name == "read standard input"][-1:]
    assert thread.daemon
    os.write(writing, b"x")  # its result arrives after the event loop has ended
    os.close(writing)  # the read end stays open: the thread may not have read it yet


async def test_log_lines_replace_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log line starts where the progress was; in the end the progress is cleared."""
    handlers = logging.getLogger().handlers[:]
    reader, terminal = os.openpty()
    os.set_blocking(reader, False)
    seen = b""

    def shown(text: str) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(reader, 10_000)
        return text.encode() in seen

    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        set_up("[p] ", logging.INFO)
        async with progress_shown(lambda: "half of it " + "x" * 500):
            await until(lambda: shown(f"{CLEAR}half of it xxx"))
            logging.getLogger("a").warning("a log line")
            await until(lambda: shown("a log line"))
        await until(lambda: shown(f"a log line\r\n{CLEAR}"))
    os.close(reader)
    logging.getLogger().handlers[:] = handlers

    before, _, _ = seen.partition(b"[p] ")
    assert before.endswith(CLEAR.encode())
    assert b"x" * 200 not in seen


async def test_no_progress_is_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress is written to a file."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    async with progress_shown(lambda: "half of it"):
        await asyncio.sleep(0)

    assert "" == stderr.getvalue()


def test_keys_are_found_in_terminal_input() -> None:
    """Characters and named keys are found, even several in one read; others are ignored."""
    assert ["d", "up", "down", "page up", "page down", "home", "end", "space", "q"] == keys_in(
        b"d\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[F q"
    )
    assert [] == keys_in(b"\x1b[15~")
    assert [] == keys_in(b"\x1bOP")
    assert ["escape"] == keys_in(b"\x1b")
    assert ["/", "a", "-", "1", "backspace", "enter", "backspace", "enter"] == keys_in(
        b"/a-1\x7f\r\x08\n"
    )
    assert [] == keys_in(b"\xff\x00")
