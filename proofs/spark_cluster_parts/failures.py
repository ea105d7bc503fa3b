"""Tasks that fail once after they have written: a commit protocol of ours in place of Spark's.

Spark writes files through a class that an option names. `FailsOnceAfterWriting.scala` is such a
class, compiled here by the Scala compiler that the package has among its jars. The pipeline is what
it always is: only options of Spark differ.
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
    """Which places have a task that fails once.

    Args:
        folder: a new folder; all executors see it.
    """

    def __init__(self, folder: Path) -> None:
        self._classes = compiled(folder / "classes")
        self._folder = folder / "wanted"
        self._folder.mkdir()
        self._failed = 0

    def options(self) -> dict[str, str]:
        """What Spark has to be told."""
        return {
            "spark.driver.extraClassPath": str(self._classes),
            "spark.executor.extraClassPath": str(self._classes),
            "spark.sql.sources.commitProtocolClass": "proofs.FailsOnceAfterWriting",
            "spark.hadoop.sparq.proof.failures": str(self._folder),
        }

    def want(self) -> None:
        """Let the next task fail that has written into each of the places."""
        self._failed = self.count()
        for name in PLACES:
            (self._folder / f"{name}{FAILED}").unlink(missing_ok=True)
            (self._folder / name).touch()

    def count(self) -> int:
        """How many tasks have failed."""
        return self._failed + sum(1 for _ in self._folder.glob(f"*{FAILED}"))

    def missing(self) -> list[str]:
        """The places of which no task has failed since they were last wanted."""
        return [name for name in PLACES if (self._folder / name).exists()]
