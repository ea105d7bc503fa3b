"""A run: restarts of its processes, errors that end it, and the progress of its queries."""

import io
import json
from types import SimpleNamespace

import pytest

from sparq.pipeline.run import command
from sparq.pipeline.run.command import App, BackgroundPublishing, PipelineRun, RunError, RunOptions
from sparq.pipeline.run.folders import Folders
from sparq.pipeline.run.processes import ClusterError
from sparq.pipeline.run.progress import RunProgress

CHANNELS = ("archive", "metrics", "spam_analysis")


class Cluster:
    """Two nsqds whose state and answers a test sets."""

    def __init__(self):
        self.nsqds = [SimpleNamespace(name="nsqd-1"), SimpleNamespace(name="nsqd-2")]
        self.dead = []
        self.answers = {}

    def restart_dead(self):
        if isinstance(self.dead, Exception):
            raise self.dead
        dead, self.dead = self.dead, []
        return dead

    def depths(self, _topic):
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def state(self):
        return {"nsqds": 2}


class Application:
    """An application whose exit status a test sets."""

    def __init__(self):
        self.pid = 7
        self.log = "app.log"
        self.status = None
        self.message = ""
        self.calls = []

    def exit_status(self):
        return self.status

    def mistake(self):
        return self.message

    def start(self):
        self.calls.append("start")
        self.status = None

    def kill(self):
        self.calls.append("kill")


@pytest.fixture
def folders(tmp_path):
    """A data folder with the folder of the run's own files."""
    made = Folders(tmp_path)
    made.run.mkdir(parents=True)
    return made


@pytest.fixture
def stream():
    """The output on the terminal."""
    return io.StringIO()


@pytest.fixture
def run(folders, stream):
    """A run with replacements for the cluster and the application."""
    return PipelineRun(folders, Cluster(), Application(), RunProgress(stream))


def state_of(folders):
    return json.loads((folders.run / "state.json").read_text(encoding="utf-8"))


def test_ended_processes_are_restarted_and_counted(run, folders, stream):
    """Ended nsqds and applications are restarted; the application is killed first.

    Otherwise its JVM could outlive it.
    """
    assert run.watch() is False
    run.cluster.dead = ["nsqd-2"]
    run.app.status = 137

    assert run.watch() is False
    assert ["kill", "start"] == run.app.calls
    assert ["nsqd-2", "spark"] == run.restarts == state_of(folders)["restarts"]
    assert "restarted: nsqd-2, spark" in stream.getvalue()


def test_an_application_that_ended_with_status_0_is_not_restarted(run):
    """An application that ends with status 0 ends the run without a restart."""
    run.app.status = 0

    assert run.watch() is True
    assert [] == run.app.calls


@pytest.mark.parametrize("cause", ["mistake", "cluster", "restarts"])
def test_mistakes_and_too_many_restarts_end_a_run(run, cause):
    """A wrong setting, an nsqd that does not restart, or too many restarts end the run."""
    if cause == "mistake":
        run.app.status, run.app.message = 1, "--spark x: no"
        expected = "the pipeline does not start: --spark x: no"
    elif cause == "cluster":
        run.cluster.dead = ClusterError("nsqd-1 does not come back")
        expected = "nsqd-1 does not come back"
    else:
        run.restarts = ["spark"] * command.RESTARTS_MAX
        run.cluster.dead = ["nsqd-1"]
        expected = f"gave up after {command.RESTARTS_MAX} restarts: see app.log"

    with pytest.raises(RunError, match=expected):
        run.watch()


def test_depths_are_summed_if_all_nsqds_answer(run):
    """Depths are unknown unless all nsqds answer: a run could otherwise appear drained."""
    run.cluster.answers = {"nsqd-1": {"archive": 3, "metrics": 1}, "nsqd-2": {"archive": 4}}
    assert dict(zip(CHANNELS, (7, 1, 0), strict=True)) == run.depths()

    run.cluster.answers = {"nsqd-1": {"archive": 3}}
    assert run.depths() is None
    run.cluster.answers = ConnectionRefusedError()
    assert run.depths() is None


def test_the_state_has_the_stage_and_its_durations(run, folders):
    """The state file has the current stage; durations of earlier stages are kept."""
    run.began -= 5
    run.enter("starting")
    run.enter("publishing")
    run.enter("done")

    assert ["starting", "publishing"] == list(run.stage_seconds)
    assert 5 <= run.stage_seconds["starting"] < 60
    assert 0 <= run.stage_seconds["publishing"] < 60
    assert {"mode": "run", "stage": "done", "app_pid": 7, "restarts": [], "cluster": {"nsqds": 2}} \
        == state_of(folders)  # fmt: skip


def test_a_refused_topic_request_ends_the_run(run):
    """The error names the nsqd, the request and its answer."""
    asked = []

    def request(_method, path):
        asked.append(path)
        return (200, b"") if path.startswith("/topic") else (400, b"INVALID_CHANNEL")

    for nsqd in run.cluster.nsqds:
        nsqd.request = request
    with pytest.raises(RunError, match=r"nsqd-1 refused /channel/create\?.*: 400 INVALID_CHANNEL"):
        run.prepare_topic()
    assert "/topic/create?topic=clicks" == asked[0]


def test_only_complete_files_of_the_application_are_read(folders):
    """A missing or incomplete status file gives an empty status."""
    app = App(folders, "127.0.0.1:4161")
    assert ({}, []) == (app.status(), app.samples())
    (folders.run / "app.json").write_text('{"pid": 1')
    assert {} == app.status()
    (folders.run / "app.json").write_text('{"pid": 1}')
    assert {"pid": 1} == app.status()
    app.finish()
    assert (folders.run / "finish").exists()


def test_a_mistake_is_the_last_sentence_before_the_application_was_up(folders):
    """The mistake is the last sentence since this start; none after the application was up."""
    app = App(folders, "127.0.0.1:4161")
    app.process = SimpleNamespace(pid=5)
    folders.logs.mkdir(parents=True)
    old = "sparq pipeline: of an earlier start\n"
    app.log.write_text(old + "noise\n")
    app.logged = len(old)
    assert "" == app.mistake()

    with app.log.open("a") as log:
        log.write("sparq pipeline: first\nsparq pipeline: --master=x: unknown\n")
    assert "--master=x: unknown" == app.mistake()
    (folders.run / "app.json").write_text('{"pid": 5}')
    assert "" == app.mistake()


def test_an_unreadable_log_fails_the_publishing(folders, tmp_path):
    """If the log cannot be read, the publishing thread keeps the error for the run."""
    publishing = BackgroundPublishing(
        RunOptions(tmp_path, clicks=tmp_path / "missing.log"), folders, ["127.0.0.1:1"]
    )
    assert (0, 9) == (
        publishing.total,
        BackgroundPublishing(RunOptions(tmp_path, count=9), folders, []).total,
    )
    publishing.run()

    assert "missing.log" in str(publishing.failure)
