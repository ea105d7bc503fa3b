"""Tasks that fail once after they have written: our own commit protocol in place of Spark's.

Spark writes files through a class that an option names. `FailsOnceAfterWriting.scala` is such a
class, compiled here with the Scala compiler that is among the package's jars. The pipeline is
unchanged: only Spark's options differ.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from proofs.spark_cluster_parts.standalone import spark_home
from sparq.spark.java import ensure_java

SOURCE = Path(__file__).parent / "FailsOnceAfterWriting.scala"
COMPILER = "scala.tools.nsc.Main"
COMPILE_SECONDS = 300.0
FAILED = ".failed"
PLACES = ("archive", "metrics", "rejected", "spam_analysis")


def compiled(folder: Path) -> Path:
    """Compile the class into a new folder.

    Raises:
        AssertionError: it does not compile; the text is the compiler's.
    """
    folder.mkdir(parents=True)
    command = [ensure_java(), "-cp", f"{spark_home() / 'jars'}/*", COMPILER, "-usejavacp"]
    command += ["-d", str(folder), str(SOURCE)]
    ran = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=COMPILE_SECONDS,
        check=False,
    )
    assert not ran.returncode, ran.stdout
    return folder


class Failures:
    """Determines the folders in which one task fails once.

    Args:
        folder: a new folder that all executors see.
    """

    def __init__(self, folder: Path) -> None:
        self._classes = compiled(folder / "classes")
        self._folder = folder / "wanted"
        self._folder.mkdir()
        self._failed = 0

    def options(self) -> dict[str, str]:
        """Return the Spark options that are needed."""
        return {
            "spark.driver.extraClassPath": str(self._classes),
            "spark.executor.extraClassPath": str(self._classes),
            "spark.sql.sources.commitProtocolClass": "proofs.FailsOnceAfterWriting",
            "spark.hadoop.sparq.proof.failures": str(self._folder),
        }

    def want(self) -> None:
        """In each of these folders, let the next task that has written fail."""
        self._failed = self.count()
        for name in PLACES:
            (self._folder / f"{name}{FAILED}").unlink(missing_ok=True)
            (self._folder / name).touch()

    def count(self) -> int:
        """Return how many tasks have failed."""
        return self._failed + sum(1 for _ in self._folder.glob(f"*{FAILED}"))

    def missing(self) -> list[str]:
        """Return the folders in which no task has failed since `want` was last called."""
        return [name for name in PLACES if (self._folder / name).exists()]
