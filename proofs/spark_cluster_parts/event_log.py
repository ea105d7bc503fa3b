"""Spark's event log: how many tasks were run a second time in parallel with the first attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTED = b'{"Event":"SparkListenerTaskStart"'


def options(folder: Path) -> dict[str, str]:
    """Return the Spark options with which each application writes a log file to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def speculative_tasks(folder: Path) -> int:
    """Return the number of tasks started a second time because the first attempt was slow."""
    return sum(task["Task Info"]["Speculative"] for task in starts(folder))


def starts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield every start of a task; an application that was killed may have cut its last line."""
    for path in sorted(folder.iterdir()):
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(STARTED) and line.endswith(b"\n"):
                    yield json.loads(line)
