"""`sparq run` and `sparq up`: a cluster, the clicks, the Spark application, and the audit.

1. The cluster and the application run as separate processes, which this one watches. A process that
   dies is started again, at most `RESTARTS_MAX` times in all, and the report names it.
2. All output goes below the data folder. A run begins by deleting what an earlier run left there,
   and nothing else (`folders`).
3. `run/state.json` holds the current stage at any time, for people and for the proofs.
4. `sparq up` also starts nsqadmin (`console`), and continues without it if it fails.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparq.demo.generator import generate
from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.audit import PublisherRecords as Written
from sparq.pipeline.audit import audit
from sparq.pipeline.monitor.progress import QuerySample, from_json
from sparq.pipeline.report import Labels, PipelineOutput, RunFacts, report_of, text_of
from sparq.pipeline.report_page.page import page_of
from sparq.pipeline.run.folders import Folders, write_json
from sparq.pipeline.run.processes import (
    ADMIN_START_SECONDS,
    ClusterError,
    Console,
    LocalCluster,
    command_of,
    free_port,
)
from sparq.pipeline.run.progress import RunProgress
from sparq.pipeline.run.publishing import PublishProgress, publish, read_hashes, read_lines
from sparq.program.supervised import HOST, SupervisedProcess

TOPIC = "clicks"
CHANNELS = ("archive", "metrics", "spam_analysis")
APPLICATION = "sparq.pipeline.app"
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

MISTAKE = "sparq pipeline: "
"""Prefix of the application's message about a wrong setting. A restart would not help then."""

RESTARTS_MAX = 50
POLL_SECONDS = 0.25
STOP_SECONDS = 120.0


class RunError(Exception):
    """The run cannot continue; the text gives the reason and what to look at."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `sparq run`.

    Attributes:
        data: the data folder.
        clicks: the user's own log; None: clicks are generated.
        count: number of generated clicks.
        seed: seed of the generated day.
    """

    data: Path
    clicks: Path | None = None
    count: int = 200_000
    seed: int = 1


class App(SupervisedProcess):
    """The Spark application: a process that reads the topic until it gets the signal to finish.

    Args:
        folders: the run's folders.
        lookupd: nsqlookupd's HTTP address.
        flags: further flags of `sparq pipeline`.
    """

    def __init__(self, folders: Folders, lookupd: str, flags: Sequence[str] = ()) -> None:
        self.folders = folders
        self.flags = (f"--metrics-address={HOST}:{free_port(METRICS_PORT)}", *flags)
        self.logged = 0
        command = [*command_of(APPLICATION), "--data", str(folders.data)]
        command += ["--lookupd-http-address", lookupd, "--topic", TOPIC]
        command += ["--run-dir", str(folders.run), *self.flags]
        super().__init__("sparq pipeline", command, folders.logs / "app.log")

    def start(self) -> None:
        """Start the application, or start it again from its checkpoint."""
        self.folders.logs.mkdir(parents=True, exist_ok=True)
        # `mistake` must not find the message of an earlier start.
        self.logged = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def status(self) -> dict[str, Any]:
        """The newest `app.json`; empty before the application has written it."""
        return dict(self._read_json("app.json") or {})

    def samples(self) -> list[QuerySample]:
        """Samples of the queries' rate and lag so far."""
        return from_json(self._read_json("samples.json") or [])

    def _read_json(self, name: str) -> Any:
        with suppress(OSError, ValueError):
            return json.loads((self.folders.run / name).read_text(encoding="utf-8"))
        return None

    def mistake(self) -> str:
        """The application's message if it ended before it had started up; otherwise empty."""
        if self.status().get("pid") == self.pid:
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(self.logged)
            mistakes = [line for line in log if line.startswith(MISTAKE)]
        return mistakes[-1].removeprefix(MISTAKE).strip() if mistakes else ""

    def finish(self) -> None:
        """Signal that no more clicks will come."""
        (self.folders.run / "finish").touch()


class BackgroundPublishing(threading.Thread):
    """Publishes in the background while the main thread watches the other processes."""

    def __init__(self, options: RunOptions, folders: Folders, nsqds: list[str]) -> None:
        super().__init__(name="publishing", daemon=True)
        self.progress = PublishProgress()
        self.labels: Labels | None = None
        self.failure: Exception | None = None
        self.total = 0 if options.clicks else options.count
        self._options = options
        self._folders = folders
        self._nsqds = nsqds

    def run(self) -> None:
        """Generate or read the clicks and publish them; runs in the thread."""
        try:
            self.progress = asyncio.run(
                publish(
                    self._bodies(),
                    self._nsqds,
                    TOPIC,
                    acknowledged=self._folders.run / "acknowledged",
                    resent=self._folders.run / "resent",
                    on_progress=self._note,
                )
            )
        except Exception as error:
            self.failure = error

    def _note(self, progress: PublishProgress) -> None:
        self.progress = progress

    def _bodies(self) -> Iterable[bytes]:
        if self._options.clicks is not None:
            return read_lines(self._options.clicks)
        made = generate(self._options.count, self._options.seed)
        self.labels = made.labels
        return made.lines


@dataclass
class PipelineRun:
    """One run: all watched processes, and what happened to them."""

    folders: Folders
    cluster: LocalCluster
    app: App
    progress: RunProgress
    mode: str = "run"
    console: Console | None = None
    restarts: list[str] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stage: str = ""

    def enter(self, stage: str) -> None:
        """Begin a stage: record how long the last one took, and write the state."""
        now = time.monotonic()
        if self.stage:
            self.stage_seconds[self.stage] = now - self.began - sum(self.stage_seconds.values())
        self.stage = stage
        self.write_state()

    def write_state(self) -> None:
        """Write `run/state.json`."""
        state: dict[str, Any] = {"mode": self.mode, "stage": self.stage}
        state["app_pid"] = self.app.pid or None
        state["restarts"] = self.restarts
        if self.console is not None:
            state["nsqadmin"] = self.console.state()
        write_json(self.folders.run / "state.json", {**state, "cluster": self.cluster.state()})

    def watch(self) -> bool:
        """Restart processes that have died; True once the application has ended by itself.

        Raises:
            RunError: too many restarts, a process does not come back, or it cannot start.
        """
        try:
            dead = self.cluster.restart_dead()
        except ClusterError as error:
            raise RunError(str(error)) from error
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
        if self.console is not None and (news := self.console.watch()):
            self.progress.say(news)
            self.write_state()
        if len(self.restarts) > RESTARTS_MAX:
            raise RunError(f"gave up after {RESTARTS_MAX} restarts: see {self.app.log}")
        return status == 0

    def depths(self) -> dict[str, int] | None:
        """The depth of each channel, summed over all nsqds; None while an nsqd does not answer."""
        sums = dict.fromkeys(CHANNELS, 0)
        try:
            found = self.cluster.depths(TOPIC)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        if len(found) < len(self.cluster.nsqds):
            return None
        for channels in found.values():
            for name in CHANNELS:
                sums[name] += channels.get(name, 0)
        return sums

    def prepare_topic(self) -> None:
        """Create the topic and its channels on every nsqd before the first click is published."""
        for member in self.cluster.nsqds:
            for path in (
                f"/topic/create?topic={TOPIC}",
                *(f"/channel/create?topic={TOPIC}&channel={name}" for name in CHANNELS),
            ):
                status, body = member.request("POST", path)
                if status != http.client.OK:
                    raise RunError(f"{member.name} refused {path}: {status} {body.decode()}")

    def publish(self, publishing: BackgroundPublishing) -> None:
        """Publish everything, and watch the processes meanwhile.

        Raises:
            RunError: the clicks cannot be read or published.
        """
        publishing.start()
        while publishing.is_alive():
            self.watch()
            self._show(publishing, self.depths())
            publishing.join(POLL_SECONDS)
        if publishing.failure is not None:
            raise RunError(f"publishing failed: {publishing.failure}")

    def drain(self, publishing: BackgroundPublishing) -> None:
        """Wait until all channels are drained, then let the application finish."""
        drained = 0
        while drained < 2:
            self.watch()
            depths = self.depths()
            drained = drained + 1 if depths is not None and not any(depths.values()) else 0
            self._show(publishing, depths)
            time.sleep(POLL_SECONDS)
        self.enter("closing")
        self.app.finish()
        while not self.watch():
            self._show(publishing, self.depths())
            time.sleep(POLL_SECONDS)

    def _show(self, publishing: BackgroundPublishing, depths: dict[str, int] | None) -> None:
        queries = self.app.status().get("queries", {})
        rows = {name: queries.get(name, {}).get("rows", 0) for name in CHANNELS}
        published = publishing.progress.acknowledged
        self.progress.show(self.stage, published, publishing.total, rows, depths)

    def stop(self) -> None:
        """End all processes that were started: the application, nsqadmin, then the cluster."""
        with ExitStack() as stack:
            # In reverse order, and each even if another one fails.
            stack.callback(self.cluster.stop)
            if self.console is not None:
                stack.callback(self.console.stop)
            stack.callback(self.app.kill)


def run(options: RunOptions) -> int:
    """Run `sparq run` from start to end.

    Returns:
        The exit status: 0 if the audit passed, 1 if it failed.
    Raises:
        RunError, ClusterError: the run could not be completed.
    """
    folders = Folders(options.data)
    progress = RunProgress(sys.stderr)
    lock = folders.lock()
    if folders.clear():
        progress.say(f"deleted the output of the last run in {options.data}")
    cluster = LocalCluster(folders.logs, options.data)
    runner = PipelineRun(folders, cluster, App(folders, cluster.lookupd.http, RUN_FLAGS), progress)
    try:
        runner.enter("starting")
        # Side by side: the application looks for nsqlookupd only when Spark has started.
        runner.app.start()
        cluster.start()
        runner.prepare_topic()
        nsqds = [member.tcp for member in cluster.nsqds]
        publishing = BackgroundPublishing(options, folders, nsqds)
        runner.enter("publishing")
        runner.publish(publishing)
        runner.enter("draining")
        runner.drain(publishing)
        runner.enter("auditing")
        report, output = _audited(runner, publishing, options)
    finally:
        runner.stop()
        lock.close()
    progress.clear()
    write_json(options.data / "report.json", report)
    page = page_of(report, output.minutes, output.findings, runner.app.samples())
    (options.data / "report.html").write_text(page, encoding="utf-8")
    sys.stdout.write(text_of(report) + f"\n  {options.data / 'report.html'}\n\n")
    runner.enter("done")
    return 0 if report["exactly_once"] else 1


def _audited(
    runner: PipelineRun, publishing: BackgroundPublishing, options: RunOptions
) -> tuple[dict[str, Any], PipelineOutput]:
    folders = runner.folders
    written = Written(
        read_hashes(folders.run / "acknowledged"), read_hashes(folders.run / "resent")
    )
    output = PipelineOutput(
        archive.read_clicks(folders),
        archive.read_rejected(folders),
        metrics.read_minutes(folders),
        spam_analysis.read_sessions(folders),
        spam_analysis.read_findings(folders),
    )
    logged = sum(runner.cluster.message_counts(TOPIC).values())
    found = audit(
        logged,
        output.archive,
        output.rejected,
        output.minutes,
        output.sessions,
        published=written,
    )
    total = time.monotonic() - runner.began
    source = str(options.clicks) if options.clicks else f"generated clicks, seed {options.seed}"
    made = RunFacts(
        source,
        publishing.progress.acknowledged,
        publishing.progress.resent,
        {**runner.stage_seconds, "total": total},
        runner.restarts,
        publishing.labels,
    )
    if publishing.labels is not None:
        labels = [[*who, sorted(reasons)] for who, reasons in publishing.labels.items()]
        write_json(options.data / "labels.json", labels)
    return report_of(made, found, output), output


def up(data: Path) -> int:
    """Run `sparq up` until Ctrl-C or SIGTERM, then close the open minutes and visits."""
    folders = Folders(data)
    progress = RunProgress(sys.stderr)
    lock = folders.lock()
    if folders.mode() == "run":
        folders.clear()
        progress.say(f"deleted the output of the last run in {data}")
    cluster = LocalCluster(folders.logs, data)
    lookupd = cluster.lookupd.http
    console = Console(folders.run, folders.logs / "nsqadmin.log", lookupd)
    runner = PipelineRun(folders, cluster, App(folders, lookupd), progress, "up", console)
    try:
        runner.enter("starting")
        # From the last end of `sparq up`: with it the application would end at once.
        (folders.run / "finish").unlink(missing_ok=True)
        runner.app.start()
        cluster.start()
        console.start()
        runner.prepare_topic()
        sys.stdout.write(_where(cluster, data, _where_console(console)))
        sys.stdout.flush()
        runner.enter("running")
        shown_pid = None
        with suppress(KeyboardInterrupt):
            while True:
                runner.watch()
                figures = runner.app.status()
                if figures.get("pid") != shown_pid and figures.get("ui"):
                    shown_pid = figures["pid"]
                    sys.stdout.write(_watching(figures))
                    sys.stdout.flush()
                time.sleep(POLL_SECONDS)
        progress.say("stopping: closing open visits (Ctrl-C again: leave them open)")
        _finish(runner)
    finally:
        runner.stop()
        lock.close()
    runner.enter("done")
    return 0


def _watching(figures: dict[str, Any]) -> str:
    """The addresses of the application's UI and metrics; they may change with a restart."""
    return f"  Spark       {figures['ui']}\n  metrics     {figures['metrics']}\n\n"


def _finish(runner: PipelineRun) -> None:
    runner.enter("closing")
    runner.app.finish()
    deadline = time.monotonic() + STOP_SECONDS
    with suppress(KeyboardInterrupt):
        while runner.app.exit_status() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _where_console(console: Console) -> str:
    """The address of nsqadmin, or why there is none."""
    return (
        console.url
        if console.is_ready(ADMIN_START_SECONDS)
        else f"does not answer; see its log: {console.log}"
    )


def _where(cluster: LocalCluster, data: Path, console: str) -> str:
    first = cluster.nsqds[0]
    line = (
        '203.0.113.7 - - [21/Nov/2026:10:00:00 +0000] "GET /pricing HTTP/1.1" 200 5120'
        ' "-" "Mozilla/5.0"'
    )
    nsqds = ", ".join(f"{member.tcp} (HTTP {member.http})" for member in cluster.nsqds)
    return f"""
  nsqlookupd  {cluster.lookupd.tcp} (HTTP {cluster.lookupd.http})
  nsqd        {nsqds}
  nsqadmin    {console}

  publish a click, or a whole log:
    curl -d '{line}' 'http://{first.http}/pub?topic={TOPIC}'
    curl --data-binary @access.log 'http://{first.http}/mpub?topic={TOPIC}'

  watch:   sparq top --lookupd-http-address={cluster.lookupd.http}
  manage:  sparq admin list --lookupd-http-address={cluster.lookupd.http}
  output:  {data}/clicks  {data}/minutes  {data}/findings
  stop:    Ctrl-C

"""
