"""Keys and the progress line, on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import sys

import pytest

from sparq.program.logging import set_up
from sparq.tools.terminal import CLEAR, keys_in, show_progress
from tests.support.waiting import until


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
        showing = asyncio.create_task(show_progress(lambda: "half of it " + "x" * 500))
        await until(lambda: shown(f"{CLEAR}half of it xxx"))
        logging.getLogger("a").warning("a log line")
        await until(lambda: shown("a log line"))
        showing.cancel()
        await asyncio.wait([showing])
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
    await show_progress(lambda: "half of it")

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
