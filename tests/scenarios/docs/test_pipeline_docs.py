"""docs/pipeline.md: its pipeline is started and stopped, its programs print the page's outputs.

Its programs for Spark Connect and for declarative pipelines are run in tests/scenarios/spark.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.pipeline import settings
from sparq.pipeline.command import parse as parse_pipeline
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions import pack, state
from sparq.pipeline.sessions.rules import read_rules
from sparq.program.flags import parse
from sparq.program.supervised import SupervisedProcess
from sparq.spark.offsets import MESSAGES_PER_PARTITION
from sparq.tools import to_nsq
from sparq.tools.command_line import parse as parse_tool
from tests.pipeline.stored import stored
from tests.scenarios.docs import pipeline_page as page
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

RULES = read_rules(None, CLICK_SCHEMA)
START = "Start"
OWN, UPGRADE = "A query of your own", "Upgrade a running query"
CONNECT, DECLARATIVE = "Spark Connect", "A declarative pipeline"
MORE = (
    b'203.0.113.9 - - [02/Mar/2026:10:59:00 +0000] "GET /old HTTP/1.1" 404 153 "-" "curl/8.5"\n'
    b'203.0.113.9 - - [02/Mar/2026:11:30:00 +0000] "GET /new HTTP/1.1" 404 153 "-" "curl/8.5"\n'
)
"""Published after the first stop."""
PIPELINE_SECONDS = 240.0


def marked_slow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of the page's programs, which start Spark eight times, as slow."""
    return pytest.mark.slow(pytest.mark.timeout(1200)(test))


def pipeline_commands() -> list[list[str]]:
    """The flags of each command line of `sparq pipeline`."""
    lines = [line for line in page.command_lines("sparq") if line.startswith("sparq pipeline")]
    return [shlex.split(line)[2:] for line in lines]


def test_every_program_is_run_by_a_test() -> None:
    """Every program of the page has a test: a new one must be added here."""
    assert sorted([UPGRADE, OWN, CONNECT, DECLARATIVE]) == sorted(page.titles("python"))
    assert [DECLARATIVE] == page.titles("yaml")


def test_the_readers_own_query_is_short() -> None:
    """The page promises a short query: it has at most 40 lines."""
    (program,) = page.blocks(OWN, "python")

    assert len([line for line in program.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("words", pipeline_commands(), ids=" ".join)
def test_the_pipeline_accepts_its_command_lines(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sparq pipeline` accepts each command line, with the page's file and an offset in JSON."""
    (text,) = page.blocks(START, "toml")
    (tmp_path / "clicks.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    offset = json.dumps({"127.0.0.1:4150/ab": {"index": 1, "ordinal": 1}})

    assert parse_pipeline([word.replace("$(cat place.json)", offset) for word in words]).data


def test_the_settings_file_is_accepted(tmp_path: Path) -> None:
    """The tables of the page's TOML file become options of Spark and of the source."""
    (text,) = page.blocks(START, "toml")
    (tmp_path / "clicks.toml").write_text(text, encoding="utf-8")

    taken = parse_pipeline([f"--config={tmp_path / 'clicks.toml'}"])

    assert (("spark.executor.cores", "2"),) == taken.spark
    assert {"tls_v1": "true", "auth_secret": "s3cret"} == dict(taken.source)
    assert "2000 milliseconds" == taken.trigger


def test_daemons_and_to_nsq_accept_their_command_lines() -> None:
    """The daemons and to_nsq accept their command lines."""
    (nsqd,) = page.command_lines("nsqd")
    (lookupd,) = page.command_lines("nsqlookupd")
    (tool,) = page.command_lines("to_nsq")
    words = shlex.split(tool.partition(" <")[0])[1:]

    assert isinstance(parse(NsqdOptions, "nsqd", "", shlex.split(nsqd)[1:]), NsqdOptions)
    assert isinstance(
        parse(NsqlookupdOptions, "nsqlookupd", "", shlex.split(lookupd)[1:]), NsqlookupdOptions
    )
    assert isinstance(parse_tool(to_nsq.Options, to_nsq.PROGRAM, words), to_nsq.Options)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (r"over (\d+) times as many buckets", pack.BUCKETS_PER_PARTITION),
        (r"20 to 60 \| ([\d,]+) clicks", RULES.visit.held_max),
        (r"at most ([\d,]+) \(`--max-offsets-per-trigger`", settings.OFFSETS),
        (r"first one has at most ([\d,]+)", settings.FIRST_OFFSETS),
        (r"no clicks for (\d+) seconds", state.QUIET_S),
        (r"for each ([\d,]+) messages", MESSAGES_PER_PARTITION),
    ],
)
def test_the_pages_limits_are_those_of_the_code(said: str, meant: int) -> None:
    """Limits and defaults that readers use to size a cluster are those of the code."""
    (found,) = re.findall(said, page.TEXT)

    assert f"{meant:,}" == found


def test_the_pages_times_are_those_of_the_code() -> None:
    """A visit ends after half an hour without a click."""
    assert "until half an hour without a click" in page.TEXT
    assert 1_800 == RULES.visit.gap


@dataclass
class Results:
    """The results of the page's commands, in order.

    Attributes:
        folder: contains `data` and `data-2`.
        statuses: exit statuses of the pipeline's two runs.
        printed: output of the reader's own query.
        again: output of the reader's own query in its second run.
        place: output of the program that reads the checkpoint.
    """

    folder: Path
    statuses: list[int] = field(default_factory=list)
    printed: str = ""
    again: str = ""
    place: str = ""


@dataclass
class Reader:
    """Follows the page with the daemons of a test."""

    folder: Path
    lookupd: Server
    nsqd: NsqdServer

    def publish(self, lines: bytes) -> None:
        """Publish lines with the page's command."""
        (line,) = page.command_lines("to_nsq")
        line = page.with_addresses(line.partition(" <")[0], {"127.0.0.1:4150": self.nsqd.tcp})
        command = [sys.executable, "-m", "sparq.tools", "to_nsq", *shlex.split(line)[1:]]
        subprocess.run(command, input=lines, check=True, cwd=self.folder, timeout=60)

    def pipeline(self, words: list[str], *done: str) -> int | None:
        """Run the pipeline until files match all patterns, and stop it; returns its exit status."""
        words = [word.replace("127.0.0.1:4161", self.lookupd.http) for word in words]
        command = [sys.executable, "-m", "sparq.cli", "pipeline", *words, "--metrics-address="]
        process = SupervisedProcess(
            "pipeline",
            command,
            self.folder / "pipeline.log",
            environment=page.environment(),
            folder=self.folder,
        )
        process.start()

        def is_done() -> bool:
            assert not process.has_ended(), process.log.read_text(errors="replace")[-4000:]
            return all(any(self.folder.glob(pattern)) for pattern in done)

        try:
            wait_for(is_done, PIPELINE_SECONDS, every=0.1)
            return process.stop(PIPELINE_SECONDS)
        finally:
            process.kill()

    def run(self, title: str) -> str:
        """Run the program under a heading; returns its output."""
        (text,) = page.blocks(title, "python")
        if "127.0.0.1:4161" in text:
            text = page.with_addresses(text, {"127.0.0.1:4161": self.lookupd.http})
        return page.run(text, self.folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Everything on the page, from the start to the new checkpoint."""
    folder = tmp_path_factory.mktemp("page")
    first, *_, last = pipeline_commands()
    found = Results(folder)
    with (
        spawn_nsqlookupd(folder) as lookupd,
        spawn_nsqd(folder, lookupds=(lookupd,)) as nsqd,
    ):
        reader = Reader(folder, lookupd, nsqd)
        reader.publish("".join(page.blocks(START, "")).encode())
        commits = [f"data/checkpoint/{query}/commits/0" for query in settings.QUERIES]
        found.statuses.append(reader.pipeline(first, *commits))
        found.printed = reader.run(OWN)
        found.place = reader.run(UPGRADE)
        reader.publish(MORE)
        found.again = reader.run(OWN)
        from_there = [word.replace("$(cat place.json)", found.place.strip()) for word in last]
        found.statuses.append(reader.pipeline(from_there, "data-2/checkpoint/metrics/commits/0"))
    return found


@marked_slow
def test_sigterm_ends_the_pipeline_with_status_0(results: Results) -> None:
    """SIGTERM ends the pipeline with status 0, after all three queries have finished a batch."""
    assert [0, 0] == results.statuses


@marked_slow
def test_the_readers_own_query_prints_what_the_page_says(results: Results) -> None:
    """The program, unchanged, prints the page's output for the page's lines."""
    (expected,) = page.blocks(OWN, "")

    assert expected == results.printed


@marked_slow
def test_the_readers_own_query_continues_where_it_ended(results: Results) -> None:
    """The second run of the reader's own query adds the new messages, once."""
    expected = "2026-03-02 10:00 /old 4\n2026-03-02 11:00 /gone 1\n2026-03-02 11:00 /new 1\n"

    assert expected == results.again


@marked_slow
def test_a_new_checkpoint_continues_where_the_old_one_ended(results: Results) -> None:
    """The new checkpoint continues exactly at the old one's end: each click is in one folder."""
    both = [stored(results.folder / name, "minutes") for name in ("data", "data-2")]

    assert [6, 2] == [sum(one["clicks"].to_pylist()) for one in both]
