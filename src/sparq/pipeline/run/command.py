"""`sparq run` and `sparq up`: a cluster, the clicks, the Spark application, and the audit.

1. The cluster and the application run as separate processes, which this one watches. A process that
   dies is started again, at most `RESTARTS_MAX` times in all, and the report names it.
2. All output goes below the data folder. A run begins by deleting what an earlier run left there,
   and nothing else (`folders`).
3. `run/state.json` holds the current stage at any time, for people and for the proofs.
4. `sparq up` also starts nsqadmin, and continues without it if it fails.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sparq.demo.generator import Day
from sparq.pipeline.command import parse
from sparq.pipeline.report.audit import read_hashes
from sparq.pipeline.report.page import page_of, text_of
from sparq.pipeline.report.run_report import Labels, report_of
from sparq.pipeline.run import processes
from sparq.pipeline.run.folders import Folders, RunError, read_json, write_json
from sparq.pipeline.run.processes import App, Daemon, LocalCluster, free_ports, nsqadmin
from sparq.pipeline.run.progress import RunProgress
from sparq.pipeline.run.publishing import PublishProgress, publish, read_lines
from sparq.pipeline.settings import METRICS_ADDRESS, QUERIES, Settings
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import HOST

RUN_FLAGS = (
    # A run should end soon after its last click, so no query waits between two batches.
    "--trigger=0 seconds",
    # A run takes less than a minute. Java's second compiler pays off only later (61 and 61 s with
    # it, 50 and 53 without). So do checks of the code in Spark's own jars (51, 48 and 51 s with
    # them, 48 and 47 without).
    "--spark=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
METRICS_PORT = 4180
"""Port of the Prometheus metrics; if it is taken, a free port is used."""

RESTARTS_MAX = 50
POLL_SECONDS = 0.25
STOP_SECONDS = 120.0
ADMIN_START_SECONDS = 15.0
BEHIND_SPARK = 10
"""The niceness of the publishing thread: Spark's start, which takes longer, goes first."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `sparq run`.

    Attributes:
        data: the data folder.
        clicks: the user's own log; None: clicks are generated.
        count: number of generated clicks.
        seed: seed of the generated day.
        config: a settings file of `sparq pipeline`; empty: none.
    """

    data: Path
    clicks: Path | None = None
    count: int = 200_000
    seed: int = 1
    config: str = ""


def settings_of(
    data: Path, lookupd: str, config: str = "", flags: Iterable[str] = ()
) -> tuple[Settings, list[str]]:
    """The settings of the application, checked as far as possible without Spark; and its flags.

    Args:
        data: the data folder.
        lookupd: nsqlookupd's HTTP address.
        config: a settings file of `sparq pipeline`; empty: none.
        flags: further flags, which override the file.

    Raises:
        Mistake: a setting, a rule or a metric of the file is wrong.
    """
    words = [f"--data={data}", f"--run-dir={data / 'run'}", f"--lookupd-http-address={lookupd}"]
    words += ["--once=false", *flags, *([f"--config={config}"] if config else [])]
    settings = parse(words)
    if settings.files:
        raise RunError("--config: from: clicks come from a topic here; sparq pipeline reads files")
    if settings.metrics_address == METRICS_ADDRESS:
        words.append(f"--metrics-address={HOST}:{free_ports(METRICS_PORT)[0]}")
    if config:
        from sparq.pipeline.app import checked  # noqa: PLC0415 - loads Spark

        checked(settings)
    return settings, words


class BackgroundPublishing(threading.Thread):
    """Generates or reads the clicks and publishes them, while other processes are watched."""

    def __init__(self, options: RunOptions, folders: Folders, nsqds: list[str], topic: str) -> None:
        super().__init__(name="publishing", daemon=True)
        self.progress = PublishProgress()
        self.labels: Labels | None = None
        self.failure: Exception | None = None
        self.total = 0 if options.clicks else options.count
        self._options, self._nsqds, self._topic = options, nsqds, topic
        self._run_dir = folders.run

    def run(self) -> None:
        """Publish; an error is kept."""
        with suppress(OSError):  # only Linux has a niceness for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BEHIND_SPARK)
        try:
            if self._options.clicks is not None:
                bodies = read_lines(self._options.clicks)
            else:
                day = Day(self._options.count, self._options.seed)
                self.labels, bodies = day.labels, day.lines()
            asyncio.run(
                publish(
                    bodies,
                    self._nsqds,
                    self._topic,
                    acknowledged=self._run_dir / "acknowledged",
                    resent=self._run_dir / "resent",
                    on_progress=partial(setattr, self, "progress"),
                )
            )
        except Exception as error:
            self.failure = error


@dataclass
class PipelineRun:
    """One run: all watched processes, and what happened to them.

    Attributes:
        settings: those of the application.
        mode: "run" or "up".
        console: the nsqadmin of `sparq up`.
    """

    folders: Folders
    settings: Settings
    cluster: LocalCluster
    app: App
    progress: RunProgress
    mode: str = "run"
    console: Daemon | None = None
    restarts: list[str] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stage: str = ""

    @classmethod
    def prepared(
        cls, data: Path, config: str, flags: Iterable[str] = (), *, mode: str = "run"
    ) -> PipelineRun:
        """A run whose settings are checked; nothing is started, and no folder is made.

        Raises:
            Mistake: a setting is wrong.
        """
        folders = Folders(data)
        cluster = LocalCluster(folders.logs, data)
        settings, words = settings_of(data, cluster.lookupd.http, config, flags)
        app = App(folders, words, processes.APPLICATION)
        return cls(folders, settings, cluster, app, RunProgress(sys.stderr), mode)

    def enter(self, stage: str) -> None:
        """Begin a stage: record how long the last one took, and write the state."""
        now = time.monotonic()
        if self.stage:
            self.stage_seconds[self.stage] = now - self.began - sum(self.stage_seconds.values())
        self.stage = stage
        self.write_state()

    def write_state(self) -> None:
        """Write `run/state.json`."""
        state = {
            "mode": self.mode,
            "stage": self.stage,
            "app_pid": self.app.pid or None,
            "restarts": self.restarts,
            "cluster": self.cluster.state(),
            "nsqadmin": self.console and self.console.state(),
        }
        write_json(self.folders.run / "state.json", state)

    def start(self) -> None:
        """Start the application and the cluster side by side, and create the topic.

        Raises:
            RunError: a process does not start.
        """
        self.enter("starting")
        # From the last end of `sparq up`: with it the application would end at once.
        (self.folders.run / "finish").unlink(missing_ok=True)
        self.app.start()  # it looks for nsqlookupd only when Spark has started
        self.cluster.start()
        # Before the first click is published, so that each channel gets all of them.
        topic = f"topic={self.settings.topic}"
        channels = [f"channel={channel}" for channel in self.settings.channels.values()]
        paths = [f"/topic/create?{topic}", *(f"/channel/create?{topic}&{one}" for one in channels)]
        for member in self.cluster.nsqds:
            for path in paths:
                status, body = member.request("POST", path)
                if status != http.client.OK:
                    raise RunError(f"{member.name} refused {path}: {status} {body.decode()}")

    def watch(self) -> bool:
        """Restart processes that have died; True once the application has ended by itself.

        Raises:
            RunError: too many restarts, a process does not come back, or it cannot start.
        """
        dead = self.cluster.restart_dead()
        status = self.app.exit_status()
        if status:
            mistake = self.app.mistake()
            if mistake:
                raise RunError(f"the pipeline does not start: {mistake}")
            # Its JVM may still run: it must not write to the checkpoint of its successor (decision
            # 37).
            self.app.kill()
            self.app.start()
            dead.append("spark")
        if dead:
            self.restarts += dead
            self.progress.say(f"restarted: {', '.join(dead)}")
            self.write_state()
        self._watch_console()
        if len(self.restarts) > RESTARTS_MAX:
            raise RunError(f"gave up after {RESTARTS_MAX} restarts: see {self.app.log}")
        return status == 0

    def _watch_console(self) -> None:
        """Start nsqadmin again if it has ended, up to a maximum number of starts."""
        console = self.console
        if console is None or not console.has_ended():
            return
        if console.starts < processes.ADMIN_STARTS_MAX:
            console.start()
            news = "nsqadmin ended and was restarted"
        else:
            self.console = None
            news = f"nsqadmin ended {console.starts} times and will not be restarted"
        self.progress.say(f"{news}; see its log: {console.log}")
        self.write_state()

    def depths(self) -> dict[str, int] | None:
        """The depth of each query's channel, summed over all nsqds; None while one does not answer.

        A run could otherwise appear drained.
        """
        try:
            found = self.cluster.depths(self.settings.topic)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        if len(found) < len(self.cluster.nsqds):
            return None
        return {
            query: sum(channels.get(channel, 0) for channels in found.values())
            for query, channel in self.settings.channels.items()
        }

    def process(self, publishing: BackgroundPublishing) -> None:
        """Publish everything, wait until all channels are drained, and let the application finish.

        Raises:
            RunError: the clicks cannot be read or published.
        """
        self.enter("publishing")
        publishing.start()
        drained = 0
        while drained < 2:
            self.watch()
            depths = self._show(publishing)
            if self.stage == "publishing" and not publishing.is_alive():
                if publishing.failure is not None:
                    raise RunError(f"publishing failed: {publishing.failure}")
                self.enter("draining")
            is_drained = depths is not None and not any(depths.values())
            drained = drained + 1 if self.stage == "draining" and is_drained else 0
            time.sleep(POLL_SECONDS)
        self.enter("closing")
        self.app.finish()
        while not self.watch():
            self._show(publishing)
            time.sleep(POLL_SECONDS)

    def _show(self, publishing: BackgroundPublishing) -> dict[str, int] | None:
        queries = self.app.status().get("queries", {})
        rows = {name: queries.get(name, {}).get("rows", 0) for name in self.settings.queries}
        published, depths = publishing.progress.acknowledged, self.depths()
        self.progress.show(self.stage, published, publishing.total, rows, depths)
        return depths

    def stop(self) -> None:
        """End all processes that were started: the application, nsqadmin, then the cluster."""
        with ExitStack() as stack:
            # In reverse order, and each even if another one fails.
            stack.callback(self.progress.clear)
            stack.callback(self.cluster.stop)
            if self.console is not None:
                stack.callback(self.console.stop)
            stack.callback(self.app.kill)


def run(options: RunOptions) -> int:
    """Run `sparq run` from start to end.

    Returns:
        The exit status: 0 if the audit passed, 1 if it failed.
    Raises:
        Mistake: a setting is wrong, or the run could not be completed.
    """
    runner = PipelineRun.prepared(options.data, options.config, RUN_FLAGS)
    if missing := sorted(set(QUERIES) - set(runner.settings.queries)):
        raise RunError(f"--config: sparq run audits all queries: add {', '.join(missing)}")
    folders = runner.folders
    with folders.lock():
        if folders.clear():
            runner.progress.say(f"deleted the output of the last run in {options.data}")
        try:
            runner.start()
            nsqds = [member.tcp for member in runner.cluster.nsqds]
            publishing = BackgroundPublishing(options, folders, nsqds, runner.settings.topic)
            runner.process(publishing)
            runner.enter("auditing")
            report, figures = _audited(runner, publishing, options)
        finally:
            runner.stop()
    write_json(options.data / "report.json", report)
    samples = read_json(folders.run / "samples.json")["samples"]
    page = page_of(report["source"], figures, report, samples)
    (options.data / "report.html").write_text(page, encoding="utf-8")
    sys.stdout.write(text_of(report) + f"\n  {options.data / 'report.html'}\n\n")
    runner.enter("done")
    return 0 if report["exactly_once"] else 1


def _audited(
    runner: PipelineRun, publishing: BackgroundPublishing, options: RunOptions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of `report.json`, and the figures of all clicks (`figures_of`)."""
    folders = runner.folders
    if publishing.labels is not None:
        labels = [[*who, sorted(reasons)] for who, reasons in publishing.labels.items()]
        write_json(options.data / "labels.json", labels)
    generated = f"generated clicks, seed {options.seed}"
    facts = {
        "source": str(options.clicks) if options.clicks else generated,
        "published": publishing.progress.acknowledged,
        "resent": publishing.progress.resent,
        "logged": sum(runner.cluster.message_counts(runner.settings.topic).values()),
        "restarts": runner.restarts,
    }
    # Anonymized clicks are stored without the bodies that would be compared.
    is_compared = not runner.settings.reading.anonymize
    acknowledged = read_hashes(folders.run / "acknowledged") if is_compared else None
    records = acknowledged, read_hashes(folders.run / "resent")
    place = TablePlace(str(folders.data.absolute()))
    report, figures = report_of(place, facts, records, publishing.labels)
    total = time.monotonic() - runner.began
    seconds = {**runner.stage_seconds, "total": total}
    report["seconds"] = round(total, 1)
    report["stage_seconds"] = {name: round(value, 1) for name, value in seconds.items()}
    report["clicks_per_second"] = round(report["archived"] / max(total, 0.001))
    return report, figures


def up(data: Path, config: str = "") -> int:
    """Run `sparq up` until Ctrl-C or SIGTERM, then close the open minutes and visits.

    Raises:
        Mistake: a setting is wrong, or a process does not start.
    """
    runner = PipelineRun.prepared(data, config, mode="up")
    folders, cluster, app = runner.folders, runner.cluster, runner.app
    with folders.lock():
        if folders.mode() == "run":
            folders.clear()
            runner.progress.say(f"deleted the output of the last run in {data}")
        lookupd = cluster.lookupd.http
        runner.console = nsqadmin(folders.run, folders.logs / "nsqadmin.log", lookupd)
        try:
            runner.start()
            runner.console.start()
            sys.stdout.write(_where(runner))
            runner.enter("running")
            shown_pid = None
            with suppress(KeyboardInterrupt):
                while True:
                    runner.watch()
                    figures = app.status()
                    if figures.get("pid") != shown_pid and figures.get("ui"):
                        # The addresses may change with a restart.
                        shown_pid, ui, served = figures["pid"], figures["ui"], figures["metrics"]
                        sys.stdout.write(f"  Spark       {ui}\n  metrics     {served}\n\n")
                    sys.stdout.flush()
                    time.sleep(POLL_SECONDS)
            runner.progress.say("stopping: closing open visits (Ctrl-C again: leave them open)")
            runner.enter("closing")
            app.finish()
            with suppress(KeyboardInterrupt):
                app.wait_until(app.has_ended, STOP_SECONDS)
        finally:
            runner.stop()
    runner.enter("done")
    return 0


def _where(runner: PipelineRun) -> str:
    """Where everything is, and what a user may do next."""
    cluster, console, data = runner.cluster, runner.console, runner.folders.data
    assert console is not None
    admin = f"http://{console.http}/"
    if not console.is_ready(ADMIN_START_SECONDS):
        admin = f"does not answer; see its log: {console.log}"
    first = cluster.nsqds[0]
    line = (
        '203.0.113.7 - - [21/Nov/2026:10:00:00 +0000] "GET /pricing HTTP/1.1" 200 5120'
        ' "-" "Mozilla/5.0"'
    )
    nsqds = ", ".join(f"{member.tcp} (HTTP {member.http})" for member in cluster.nsqds)
    topic = runner.settings.topic
    return f"""
  nsqlookupd  {cluster.lookupd.tcp} (HTTP {cluster.lookupd.http})
  nsqd        {nsqds}
  nsqadmin    {admin}

  publish a click, or a whole log:
    curl -d '{line}' 'http://{first.http}/pub?topic={topic}'
    curl --data-binary @access.log 'http://{first.http}/mpub?topic={topic}'

  watch:   sparq top --lookupd-http-address={cluster.lookupd.http}
  manage:  sparq admin list --lookupd-http-address={cluster.lookupd.http}
  output:  {data}/clicks  {data}/minutes  {data}/findings
  stop:    Ctrl-C

"""
