"""`sparq run` and `sparq up`: a cluster, the clicks, the Spark application, and the audit.

The cluster and the application run as separate processes, which this one watches. A process that
dies is started again, at most `RESTARTS_MAX` times in all. `run/state.json` has the current stage.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from sparq.demo.generator import generate
from sparq.demo.scores import Labels
from sparq.options.mistakes import Mistake
from sparq.pipeline import folders
from sparq.pipeline.command import parse, values_of
from sparq.pipeline.folders import write_json
from sparq.pipeline.report.audit import read_records, report_of
from sparq.pipeline.report.page import page_of, text_of
from sparq.pipeline.run.processes import App, LocalCluster, free_port
from sparq.pipeline.run.publishing import PublishProgress, publish, read_lines
from sparq.pipeline.settings import METRICS_ADDRESS, QUERIES
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import HOST

RUN_FLAGS = (
    # A run should end soon after its last click, so no query waits between two batches.
    "--trigger=0 seconds",
    # Java's second compiler pays off only after a minute (61 and 61 s with it, 50 and 53 without).
    # So do checks of the code in Spark's own jars (51, 48 and 51 s with them, 48 and 47 without).
    "--spark=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
RESTARTS_MAX = 50
POLL_SECONDS = 0.25
SHOW_SECONDS = 5.0
STOP_SECONDS = 120.0
BEHIND_SPARK = 10  # niceness of the publishing thread: Spark's start takes longer


class PipelineRun:
    """One run, of mode "run" or "up": all watched processes, and what happened to them."""

    def __init__(
        self, data: Path, config: str = "", flags: Sequence[str] = (), mode: str = "run"
    ) -> None:
        self.data, self.run_dir, self.mode = data, data / "run", mode
        self.cluster = LocalCluster(
            data / "logs", data, has_standard_ports=True, has_admin=mode == "up"
        )
        words = [f"--data={data}", f"--run-dir={self.run_dir}", "--once=false", *flags]
        words += [f"--lookupd-http-address={self.cluster.lookupd.http}"]
        words += [f"--config={config}"] if config else []
        self.settings = parse(words)
        if self.settings.files:
            raise Mistake("--config: from: clicks come from a topic; sparq pipeline reads files")
        if self.settings.metrics_address == METRICS_ADDRESS:
            port = free_port(int(METRICS_ADDRESS.rpartition(":")[2]))
            words.append(f"--metrics-address={HOST}:{port}")
        if config:
            from sparq.pipeline.app import checked  # noqa: PLC0415 - loads Spark

            checked(self.settings)
        self.app = App(data, words)
        self.restarts: list[str] = []
        self.published = PublishProgress()
        self.labels: Labels | None = None
        self.failure: Exception | None = None
        self.stage = ""
        self.began = self._shown_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line for people."""
        sys.stderr.write(f"[{time.monotonic() - self.began:5.1f} s] {text}\n")

    def enter(self, stage: str) -> None:
        """Begin a stage, or go on with it: write `run/state.json`."""
        self.stage = stage
        state = {
            "mode": self.mode,
            "stage": stage,
            "app_pid": self.app.pid or None,
            "restarts": self.restarts,
            "cluster": self.cluster.state(),
        }
        write_json(self.run_dir / "state.json", state)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Delete what an earlier `sparq run` left, start application and cluster; end them."""
        with folders.lock(self.data), ExitStack() as stack:
            stack.callback(self.cluster.stop)
            stack.callback(self.app.kill)
            if "run" in (self.mode, folders.mode(self.data)) and folders.clear(self.data):
                self.say(f"deleted the output of the last run in {self.data}")
            self.enter("starting")
            # From the last end of `sparq up`: with it the application would end at once.
            (self.run_dir / "finish").unlink(missing_ok=True)
            self.app.start()  # it looks for nsqlookupd only when Spark has started
            # Channels come before the first click, so that each gets all of them.
            self.cluster.start(self.settings.topic, self.settings.channels.values())
            yield

    def watch(self) -> bool:
        """Restart processes that have died; True once the application has ended by itself."""
        dead = self.cluster.restart_dead()
        status = self.app.exit_status()
        if status:
            if mistake := self.app.mistake():
                raise Mistake(f"the pipeline does not start: {mistake}")
            self.app.kill()  # its JVM may still run, and write to the checkpoint of its successor
            self.app.start()
            dead.append("spark")
        if dead:
            self.restarts += dead
            why = f": see {self.app.log}" if "spark" in dead else ""
            self.say(f"restarted: {', '.join(dead)}{why}")
            self.enter(self.stage)
        if len(self.restarts) > RESTARTS_MAX:
            raise Mistake(f"gave up after {RESTARTS_MAX} restarts: see {self.app.log}")
        return status == 0

    def publish(self, clicks: Path | None, count: int, seed: int) -> None:
        """Publish the lines of a log, or generated clicks; in a thread, so an error is kept."""
        with suppress(OSError):  # only Linux has a niceness for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BEHIND_SPARK)
        try:
            bodies: Iterable[bytes]
            if clicks is not None:
                bodies = read_lines(clicks)
            else:
                day = generate(count, seed)
                self.labels, bodies = day.labels, day.lines
            nsqds, topic = [one.tcp for one in self.cluster.nsqds], self.settings.topic
            asyncio.run(publish(bodies, nsqds, topic, self.run_dir, self.published))
        except Exception as error:
            self.failure = error

    def process(self, clicks: Path | None, count: int, seed: int) -> None:
        """Publish everything, wait until all channels are drained, let the application finish."""
        self.enter("publishing")
        arguments = clicks, count, seed
        publishing = threading.Thread(target=self.publish, args=arguments, daemon=True)
        publishing.start()
        depths = None
        while self.stage == "publishing" or depths is None or any(depths.values()):
            time.sleep(POLL_SECONDS)
            self.watch()
            if self.stage == "publishing" and not publishing.is_alive():
                if self.failure is not None:
                    raise Mistake(f"publishing failed: {self.failure}")
                self.enter("draining")
            depths = self.cluster.depths(self.settings.topic, self.settings.channels.values())
            self.show(depths or {})
        self.enter("closing")
        self.app.finish()
        while not self.watch():
            time.sleep(POLL_SECONDS)

    def show(self, depths: dict[str, int]) -> None:
        """Print the progress, every few seconds: clicks published, and left in each channel."""
        if time.monotonic() - self._shown_at >= SHOW_SECONDS:
            self._shown_at, done = time.monotonic(), self.published.acknowledged
            left = ", ".join(f"{channel} {depth:,}" for channel, depth in depths.items())
            self.say(f"{self.stage}: published {done:,} | still to read: {left or 'unknown'}")


def data_of(config: str) -> Path:
    """The data folder for which there is no flag: that of a settings file, or `data`."""
    data = str(values_of(config).get("data", "data"))
    if "://" in data:
        raise Mistake(f"config file {config}: data={data}: name a folder of this machine")
    return Path(data).expanduser()


def run(data: Path, clicks: Path | None, count: int, seed: int, config: str = "") -> int:
    """Run `sparq run` on a log (`clicks`) or on generated clicks; 0: the audit passed; 1: not."""
    runner = PipelineRun(data, config, RUN_FLAGS)
    if missing := sorted(set(QUERIES) - set(runner.settings.queries)):
        raise Mistake(f"--config: sparq run audits all queries: add {', '.join(missing)}")
    with runner.running():
        runner.process(clicks, count, seed)
        runner.enter("auditing")
        facts = {
            "source": str(clicks or f"generated clicks, seed {seed}"),
            "published": runner.published.acknowledged,
            "resent": runner.published.resent,
            "logged": runner.cluster.message_count(runner.settings.topic),
            "restarts": runner.restarts,
        }
        acknowledged, resent = read_records(runner.run_dir)
        # Anonymized clicks are stored without the bodies that would be compared.
        records = None if runner.settings.reading.anonymize else acknowledged, resent
        report, figures = report_of(TablePlace(str(data)), facts, records, runner.labels)
    seconds = time.monotonic() - runner.began
    report |= {
        "seconds": round(seconds, 1),
        "clicks_per_second": round(report["archived"] / seconds),
    }
    write_json(data / "report.json", report)
    page = page_of(report["source"], figures, report)
    (data / "report.html").write_text(page, encoding="utf-8")
    sys.stdout.write(text_of(report) + f"\n  {data / 'report.html'}\n\n")
    runner.enter("done")
    return 0 if report["exactly_once"] else 1


def up(data: Path, config: str = "") -> int:
    """Run `sparq up` until Ctrl-C or SIGTERM, then close the open visits."""
    runner = PipelineRun(data, config, mode="up")
    app, cluster = runner.app, runner.cluster
    with runner.running():
        nsqds = ", ".join(f"{member.tcp} (HTTP {member.http})" for member in cluster.nsqds)
        places = {"nsqds": nsqds, "first": cluster.nsqds[0].http, "data": data}
        places |= {"lookupd": cluster.lookupd, "admin": cluster.members[-1].http}
        where = (files("sparq.pipeline.run") / "up.txt").read_text()
        sys.stdout.write(where.format(topic=runner.settings.topic, **places))
        sys.stdout.flush()
        runner.enter("running")
        with suppress(KeyboardInterrupt):
            while True:
                runner.watch()
                time.sleep(POLL_SECONDS)
        runner.say("stopping: closing open visits (Ctrl-C again: leave them open)")
        runner.enter("closing")
        app.finish()
        with suppress(KeyboardInterrupt):
            app.wait_until(app.has_ended, STOP_SECONDS)
    runner.enter("done")
    return 0
