"""The typed name that a verb asks for which loses messages."""

from __future__ import annotations

import sys

from sparq.tools.admin.job import Job
from sparq.tools.command_line import Failed
from sparq.tools.pipes import Input

LINE_BYTES_MAX = 1024


async def confirm(job: Job, name: str, sentence: str) -> None:
    """Have a name typed before something is lost; `--yes` spares that.

    Args:
        job: what was asked for.
        name: what is to be typed.
        sentence: what would be lost.

    Raises:
        Failed: another name was typed, or nobody is there to type one.
    """
    if job.options.yes:
        return
    keys = Input()
    if not keys.is_terminal:
        raise Failed(f"{sentence}: nothing was done; --yes does it, --dry-run shows where")
    sys.stderr.write(f"{sentence}.\nType {name} to do it: ")
    sys.stderr.flush()
    typed = b""
    while b"\n" not in typed and len(typed) < LINE_BYTES_MAX:
        read = await keys.read()
        if not read:
            break
        typed += read
    if typed.decode("utf-8", "replace").strip() != name:
        raise Failed("that is another name: nothing was done")
