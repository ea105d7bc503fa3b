"""The layout of a data folder, and what keeps two runs, or two pipelines, apart there.

clicks rejected minutes pages sessions findings    tables
checkpoint                                         Spark's, of each query; in files/ for --from
nsqd-1 nsqd-2 logs                                 of a run: data paths, output of the programs
report.html report.json                            written at the end of a run
run                                                its progress: state.json, app.json
.lock .<query>.lock                                locked by a run, by an application
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any

from sparq.options.mistakes import Mistake

NAMES = (
    *("clicks", "rejected", "minutes", "pages", "sessions", "findings"),
    *("report.html", "report.json", "checkpoint", "nsqd-1", "nsqd-2", "logs", "run"),
)
MARK = "run/state.json"
"""If this file exists, a run made the files around it, and the next run may delete them."""
ELSEWHERE = "move it away, or name another folder with --data"


def lock(data: Path, name: str = ".lock") -> IO[str]:
    """Lock a data folder against other runs until the returned file is closed."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        held = (data / name).open("w")
        # The system releases it when the process ends, however it ends.
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise Mistake(
            f"--data={data}: another pipeline is running with this folder: stop it, or name another"
        ) from error
    except OSError as error:
        raise Mistake(f"--data={data} cannot be written ({error.strerror})") from error
    return held


def mode(data: Path) -> str:
    """Whose data it is: "run", "up" (a user's own clicks), or "" if there is none yet."""
    return str(read_json(data / MARK).get("mode", "run")) if (data / MARK).exists() else ""


def clear(data: Path) -> list[str]:
    """Delete what an earlier run left; returns the names. Raises Mistake: it is not of a run."""
    held = [name for name in NAMES if (data / name).exists()]
    if mode(data) == "up":
        raise Mistake(f"{data} contains clicks of `sparq up`: {ELSEWHERE}")
    if held and not mode(data):
        raise Mistake(f"{data} contains {', '.join(held)}, which no run created: {ELSEWHERE}")
    # The mark in `run` goes last: after an interruption here, the rest can still be cleared.
    for name in held:
        remove = shutil.rmtree if (data / name).is_dir() else Path.unlink
        remove(data / name)
    return held


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file: readers see it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty while there is no file, or no whole one."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
