"""The layout of a run's data folder, and the lock and mark that keep two runs apart there.

    clicks rejected                        tables of the query `archive`
    minutes pages                          tables of the query `metrics`
    sessions findings                      tables of the query `spam_analysis`
    checkpoint/<query>                     Spark's: how far a query has come, and its state; of
                                           files in checkpoint/files/<query>
    report.html report.json labels.json    written at the end
    nsqd-1 nsqd-2 logs                     the nsqds' data paths, output of the programs
    run                                    the run's progress: state.json, app.json, samples.json
    .lock                                  locked by the run that is active

A file is written under another name and then renamed: readers see it whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparq.program.mistakes import Mistake

RESULTS = ("clicks", "rejected", "minutes", "pages", "sessions", "findings")
OUTPUT = (*RESULTS, "report.html", "report.json", "labels.json")
WORKING = ("checkpoint", "nsqd-1", "nsqd-2", "logs", "run")
MARK = "run/state.json"
"""If this file exists, a run made the files around it, and the next run may delete them."""


class RunError(Mistake):
    """The run cannot begin or continue; the text gives the reason and what to look at."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The paths below one data folder."""

    data: Path

    def __getattr__(self, name: str) -> Path:
        """Return `<data>/clicks` for the name `clicks`; the names are OUTPUT and WORKING."""
        if name not in OUTPUT + WORKING:
            raise AttributeError(name)
        return self.data / name

    def lock(self) -> IO[str]:
        """Lock the folder against other runs until the returned file is closed.

        Raises:
            RunError: another run is active there, or the folder is not writable.
        """
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            lock = (self.data / ".lock").open("w")
        except OSError as error:
            raise RunError(f"--data {self.data} cannot be written: {error.strerror}") from error
        try:
            # The system releases the lock when the process ends, however it ends; a file with a
            # process id would stay.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise RunError(
                f"another run is using {self.data}: wait until it ends, or name another folder with"
                " --data"
            ) from error
        return lock

    def mode(self) -> str:
        """The kind of data here: "run", "up" (a user's own clicks), or "" if there is none yet."""
        mode = read_json(self.data / MARK).get("mode", "run")
        return str(mode) if (self.data / MARK).exists() else ""

    def clear(self) -> list[str]:
        """Delete what an earlier run left; returns the names.

        Raises:
            RunError: one of these names exists but was not made by a run, or the folder holds a
                user's own clicks.
        """
        held = [name for name in OUTPUT + WORKING if (self.data / name).exists()]
        if self.mode() == "up":
            raise RunError(
                f"{self.data} contains clicks of `sparq up`: move it away, or name another folder"
                " with --data"
            )
        if held and not (self.data / MARK).exists():
            raise RunError(
                f"{self.data} contains {', '.join(held)}, which no run created: move it away, or"
                " name another folder with --data"
            )
        # The mark goes last: after an interruption here, the rest can still be cleared.
        for name in sorted(held, key="run".__eq__):
            path = self.data / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return held


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
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
