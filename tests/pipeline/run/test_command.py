"""A run: its settings, restarts of its processes, and errors that end it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparq.options.mistakes import Mistake
from sparq.pipeline.run import command
from sparq.pipeline.run.command import PipelineRun


class Cluster:
    """A cluster whose dead members a test sets."""

    def __init__(self):
        self.nsqds = [SimpleNamespace(tcp="127.0.0.1:1")]
        self.dead = []

    def restart_dead(self):
        if isinstance(self.dead, Exception):
            raise self.dead
        dead, self.dead = self.dead, []
        return dead

    def state(self):
        return {"nsqds": 2}


class Program:
    """An application whose exit status and message a test sets."""

    def __init__(self):
        self.pid = 7
        self.log = "app.log"
        self.exit_status = lambda: None
        self.mistake = lambda: ""
        self.calls = []

    def start(self):
        self.calls.append("start")

    def kill(self):
        self.calls.append("kill")


@pytest.fixture
def run(tmp_path):
    """A run with replacements for the cluster and the application."""
    made = PipelineRun(tmp_path, flags=["--metrics-channel=m"])
    made.cluster, made.app = Cluster(), Program()
    made.run_dir.mkdir()
    return made


def state_of(run):
    return json.loads((run.run_dir / "state.json").read_text(encoding="utf-8"))


def test_ended_processes_are_restarted_and_counted(run, capsys):
    """Ended processes are restarted, unless with status 0; the JVM could outlive its program."""
    assert run.watch() is False
    run.cluster.dead = ["nsqd-2"]
    run.app.exit_status = lambda: 137

    assert run.watch() is False
    assert ["kill", "start"] == run.app.calls
    state = {"mode": "run", "stage": "", "app_pid": 7, "restarts": ["nsqd-2", "spark"]}
    assert {**state, "cluster": {"nsqds": 2}} == state_of(run)
    assert "restarted: nsqd-2, spark" in capsys.readouterr().err
    run.app.exit_status = lambda: 0
    assert run.watch() is True
    assert ["kill", "start"] == run.app.calls


@pytest.mark.parametrize("cause", ["mistake", "cluster", "restarts"])
def test_mistakes_and_too_many_restarts_end_a_run(run, cause):
    """A wrong setting, an nsqd that does not restart, or too many restarts end the run."""
    if cause == "mistake":
        run.app.exit_status, run.app.mistake = lambda: 1, lambda: "--spark x: no"
        expected = "the pipeline does not start: --spark x: no"
    elif cause == "cluster":
        run.cluster.dead = Mistake("nsqd-1 does not come back")
        expected = "nsqd-1 does not come back"
    else:
        run.restarts = ["spark"] * command.RESTARTS_MAX
        run.cluster.dead = ["nsqd-1"]
        expected = f"gave up after {command.RESTARTS_MAX} restarts: see app.log"

    with pytest.raises(Mistake, match=expected):
        run.watch()


def test_progress_is_shown_every_few_seconds(run, capsys, monkeypatch):
    """A line has the stage, the published clicks, and what each query has not read yet."""
    run.stage = "draining"
    run.published.acknowledged = 5_000
    run.show({"archive": 0, "metrics": 4_000})
    assert "" == capsys.readouterr().err
    monkeypatch.setattr(command, "SHOW_SECONDS", 0)
    run.show({"archive": 0, "metrics": 4_000})
    run.show({})

    known, unknown = capsys.readouterr().err.splitlines()
    assert known.endswith("s] draining: published 5,000 | still to read: archive 0, metrics 4,000")
    assert unknown.endswith("still to read: unknown")


def test_the_settings_file_is_handed_on(tmp_path):
    """The application gets the file; what a run itself decides has priority over it."""
    file = tmp_path / "clicks.toml"
    file.write_text("""
topic = "visits"
once = true
data = "elsewhere"
metrics-address = "127.0.0.1:9"
[metrics.paid]
by = ["device"]
value = "sum(bytes)"
""")
    run = PipelineRun(tmp_path, str(file), ["--trigger=0 seconds"])
    settings, words = run.settings, run.app.command

    assert f"--config={file}" in words
    assert ("visits", False, str(tmp_path)) == (settings.topic, settings.once, settings.data)
    assert ("127.0.0.1:9", "0 milliseconds") == (settings.metrics_address, settings.trigger)
    assert not any(word.startswith("--metrics-address") for word in words)
    words = PipelineRun(tmp_path).app.command
    assert any(word.startswith("--metrics-address=127.0.0.1:") for word in words)
    assert [Path("elsewhere"), Path("data")] == [command.data_of(one) for one in (str(file), "")]


def test_an_unreadable_log_fails_the_publishing(run, tmp_path):
    """If the log cannot be read, the publishing thread keeps the error for the run."""
    run.publish(tmp_path / "missing.log", 0, 0)

    assert "missing.log" in str(run.failure)
