"""Tasks that fail once after they have written a file of a table.

The pipeline is unchanged: Spark starts its Python workers from `failing_workers.py`.
"""

from __future__ import annotations

from pathlib import Path

from proofs.daemon_fixture import python_path

FAILED = ".failed"
FOLDER = "SPARQ_PROOF_FAILURES"
"""Environment variable with the folder."""

TABLES = ("clicks", "rejected", "minutes", "pages", "sessions", "findings")


class Failures:
    """Determines the tables of which one task fails once.

    Args:
        folder: a new folder that all executors see.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._failed = 0

    def options(self) -> dict[str, str]:
        """Return the Spark options that are needed."""
        return {
            "spark.python.daemon.module": "proofs.spark_cluster_parts.failing_workers",
            "spark.executorEnv.PYTHONPATH": python_path(),
            f"spark.executorEnv.{FOLDER}": str(self._folder),
        }

    def want(self) -> None:
        """For each table, let the next task that has written one of its files fail."""
        self._failed = self.count()
        for name in TABLES:
            (self._folder / f"{name}{FAILED}").unlink(missing_ok=True)
            (self._folder / name).touch()

    def count(self) -> int:
        """Return how many tasks have failed."""
        return self._failed + sum(1 for _ in self._folder.glob(f"*{FAILED}"))

    def missing(self) -> list[str]:
        """Return the tables of which no task has failed since `want` was last called."""
        return [name for name in TABLES if (self._folder / name).exists()]
