"""Records what was published, what a query's sink contains, and what the query reported as lost.

The sink is a `foreachBatch` that stores each batch's bodies by batch number, so that a repeated
batch replaces itself: the sink is idempotent, and the source must deliver each message exactly
once. It can be blocked in the middle of a batch.
"""

import shutil
import threading
from collections import Counter
from pathlib import Path

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol import commands
from tests.support.servers import NsqdServer
from tests.support.waiting import wait_for

WAIT_SECONDS = 150
MPUB_MESSAGES = 2_000


class Witness:
    """One topic, one query on it, and the messages of both.

    Args:
        spark: the session.
        spark_log: standard error of the session's processes.
        folder: the folder for the checkpoint.
        options: options of the source; the channel is `spark`.

    Attributes:
        continuous: whether the query runs continuously, or in availableNow runs.
        published: the bodies of all messages that nsqd has answered with OK.
        batches: the bodies in the sink, by batch number.
        checkpoint: the query's checkpoint.
        gate: while it is not set, the sink waits in the middle of a batch.
        query: the current or latest query.
    """

    def __init__(self, spark, spark_log: Path, folder: Path, options: dict[str, str]) -> None:
        self.continuous = True
        self.published: list[bytes] = []
        self.batches: dict[int, list[bytes]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.query = None
        self.options = {"channel": "spark", **options}
        self._spark = spark
        self._log = spark_log
        self._log_begin = spark_log.stat().st_size
        self.checkpoint = folder / "checkpoint"

    # Publishing

    def publish(self, nsqd: NsqdServer, count: int) -> list[bytes]:
        """Publish `count` numbered messages, all of which must be acknowledged."""
        first = len(self.published)
        bodies = [b"%07d" % number for number in range(first, first + count)]
        topic = self.options["topic"]
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=spark")
        connection = BlockingConnection(nsqd.tcp)
        for at in range(0, count, MPUB_MESSAGES):
            mpub = commands.mpub(topic, bodies[at : at + MPUB_MESSAGES])
            assert connection.ask(mpub) == b"OK"
            self.published += bodies[at : at + MPUB_MESSAGES]
        connection.close()
        return bodies

    # Reading

    def read(self, count: int | None = None) -> None:
        """Read until the sink has `count` messages; default: all that were published."""
        wanted = len(self.published) if count is None else count
        self._go_on()
        wait_for(lambda: self._failed_or(self.count >= wanted), WAIT_SECONDS, self._told, 0.05)

    def read_to_the_last(self) -> None:
        """Read until the sink has the message that was published last."""
        self._go_on()
        last = self.published[-1]
        wait_for(lambda: self._failed_or(last in self.found()), WAIT_SECONDS, self._told, 0.05)

    def _go_on(self) -> None:
        if not self.continuous:
            self.run()
        elif self.query is None or not self.query.isActive:
            self.start()

    def run(self) -> None:
        """Run once over the available messages; raise the query's error if it fails."""
        self.start(availableNow=True)
        assert self.query.awaitTermination(WAIT_SECONDS)

    def start(self, **trigger) -> None:
        """Start the query, from its checkpoint if it has one."""
        stream = self._spark.readStream.format("nsq").options(**self.options).load()
        self.query = (
            stream.select("body")
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )

    def wait_for_failure(self) -> str:
        """Wait for the query to fail, in a new run if it is not continuous; return its error."""
        if not self.continuous:
            self.start(availableNow=True)
        query = self.query
        wait_for(lambda: not query.isActive, WAIT_SECONDS, self._told, 0.05)
        assert query.exception() is not None, "the query has not failed"
        return str(query.exception())

    def stop(self) -> None:
        """Stop the query."""
        self.gate.set()
        if self.query is None:
            return
        try:
            self.query.stop()
        except Exception as error:
            raise AssertionError(f"the query does not stop: {self._stack_traces()}") from error

    def _keep(self, rows, batch: int) -> None:
        bodies = rows.toArrow().column("body").to_pylist()
        self.batches[batch] = bodies
        assert self.gate.wait(WAIT_SECONDS)

    def _failed_or(self, condition: bool) -> bool:
        if self.query.exception() is not None:
            raise self.query.exception()
        return condition

    # Results

    @property
    def count(self) -> int:
        """The number of messages in the sink."""
        return sum(map(len, list(self.batches.values())))

    def found(self) -> Counter:
        """Count each body in the sink."""
        return Counter(body for bodies in list(self.batches.values()) for body in bodies)

    def wrong(self) -> str:
        """Return a summary of missing and duplicate messages in the sink; "" if there are none."""
        found, published = self.found(), Counter(self.published)
        lacking, surplus = published - found, found - published
        if not lacking and not surplus:
            return ""
        where = {
            number: len(surplus.keys() & set(bodies)) for number, bodies in self.batches.items()
        }
        return (
            f"{lacking.total():,} lacking: {_ends(lacking)}; {surplus.total():,} too often:"
            f" {_ends(surplus)}, by batch {where}"
        )

    def log_text(self) -> str:
        """Return what Spark's processes have logged since this object was created."""
        with self._log.open("rb") as file:
            file.seek(self._log_begin)
            return file.read().decode(errors="replace")

    def lines(self, text: str) -> list[str]:
        """Return the log lines about the topic that contain this text."""
        topic = self.options["topic"]
        return [line for line in self.log_text().splitlines() if topic in line and text in line]

    def _stack_traces(self) -> str:
        """Return the stack traces of the JVM threads that run queries and tasks."""
        threads = self._spark.sparkContext._jvm.java.lang.Thread.getAllStackTraces()
        return "\n".join(
            "\n  ".join([entry.getKey().getName(), *map(str, entry.getValue())])
            for entry in threads.entrySet()
            if entry.getKey().getName().startswith(("stream execution", "Executor task"))
        )

    def _told(self) -> str:
        return f"{self.count:,} of {len(self.published):,} read; {self.log_text()[-2000:]}"


def _ends(bodies: Counter) -> str:
    """Format the smallest and the largest body."""
    return f"{min(bodies)!r} to {max(bodies)!r}" if bodies else "none"


def wipe(nsqd: NsqdServer) -> None:
    """Kill an nsqd and empty its data path."""
    nsqd.kill9()
    for path in nsqd.folder.iterdir():
        if path != nsqd.log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
