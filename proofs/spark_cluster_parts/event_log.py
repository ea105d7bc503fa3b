"""What Spark writes down of its tasks: how many were run a second time beside the first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTED = b'{"Event":"SparkListenerTaskStart"'


def options(folder: Path) -> dict[str, str]:
    """What Spark has to be told, so that each application writes a file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def speculative_tasks(folder: Path) -> int:
    """How many tasks were started a second time because the first took long."""
    return sum(task["Task Info"]["Speculative"] for task in starts(folder))


def starts(folder: Path) -> Iterator[dict[str, Any]]:
    """Every start of a task; an application that was killed may have cut its last line."""
    for path in sorted(folder.iterdir()):
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(STARTED) and line.endswith(b"\n"):
                    yield json.loads(line)
