"""Makes an archive of Spark's Java classes: `python -m tests.support.spark_classes PATH`.

Each JVM would read 15,000 classes from jars and check them. From an archive Java maps them instead,
which halves the start: 5.4 s instead of 10.4 s for a program that writes and reads one table (two
cores, three runs each, in turn). `sparq run` uses it, too: its JVM took 22 s of CPU instead of 35
(200,000 clicks). If the archive is missing, or was made from other jars or by another Java, Java
reads the jars.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from sparq.demo.generator import generate
from sparq.pipeline.java import QUIET
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.run.publishing import publish
from sparq.program.supervised import SupervisedProcess, members_of
from tests.support.spark_session import JVM_OPTIONS

SECONDS = 600.0


def make(path: Path) -> None:
    """Run the pipeline on some clicks, and archive the classes that its JVM has loaded.

    Raises:
        RuntimeError: Java wrote no archive.
    """
    made = path.with_suffix(".new")
    for old in (made, path):  # Java makes none while it uses one
        old.unlink(missing_ok=True)
    dump = f"{JVM_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit={made}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = LocalCluster(folder / "logs", folder)
        cluster.start()
        nsqds = [nsqd.tcp for nsqd in cluster.nsqds]
        flags = [f"--data={folder / 'data'}", f"--lookupd-http-address={cluster.lookupd.http}"]
        program = SupervisedProcess(
            "sparq pipeline",
            [sys.executable, "-m", "sparq.pipeline.app", "--once", "--metrics-address=", *flags],
            folder / "app.log",
            environment={**os.environ, "SPARK_SUBMIT_OPTS": dump},
        )
        try:
            clicks = generate(5_000).lines
            asyncio.run(publish(clicks, nsqds, "clicks", folder))
            program.start()
            # Java writes the archive after the program's Python has ended.
            deadline = time.monotonic() + SECONDS
            while members_of(program.pid) and time.monotonic() < deadline:
                program.exit_status()
                time.sleep(0.1)
        finally:
            program.kill()
            cluster.stop()
        if not made.is_file():
            raise RuntimeError(f"Java wrote none: {(folder / 'app.log').read_text()[-2_000:]}")
    made.replace(path)


def main() -> None:
    """Make the archive; if that fails print the reason: everything works without it."""
    began = time.monotonic()
    sys.stdout.write("noting the classes of Spark, so that it starts sooner\n")
    sys.stdout.flush()
    try:
        make(Path(sys.argv[1]))
    except Exception as error:
        sys.stdout.write(f"no archive of Spark's classes, Java reads its jars: {error}\n")
    else:
        sys.stdout.write(f"noted in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
