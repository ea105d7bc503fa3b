"""docs/guide.md: each of its programs, run with a real nsqd, prints the output on the page.

So does the consumer in README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sparq.tools import nsq_stat, nsq_to_file
from sparq.tools.command_line import parse
from tests.scenarios.docs.examples import (
    DOCS,
    Example,
    command_lines,
    count_of_programs,
    examples,
    is_accepted,
    run_all,
)
from tests.scenarios.docs.running import Result, run_sparq
from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd

PAGE = "guide.md"
EXAMPLES = examples(PAGE)
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


class Daemons(NamedTuple):
    """An nsqd, and the real addresses for those on the page."""

    nsqd: NsqdServer
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """An nsqd that is registered with an nsqlookupd."""
    folder = tmp_path_factory.mktemp("guide")
    with (
        spawn_nsqlookupd(folder) as lookupd,
        spawn_nsqd(folder, lookupds=(lookupd,)) as nsqd,
    ):
        yield Daemons(nsqd, {"127.0.0.1:4150": nsqd.tcp, "127.0.0.1:4161": lookupd.http})


@pytest.fixture(scope="module")
def outputs(daemons: Daemons, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The result of each program."""
    return run_all(PAGE, daemons.addresses, tmp_path_factory.mktemp("programs"))


def test_every_program_of_the_page_has_an_output() -> None:
    """Every program of the page has an output to compare with."""
    assert 10 < len(EXAMPLES) == count_of_programs(PAGE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_a_program_prints_what_the_page_says(example: Example, outputs: dict[str, Result]) -> None:
    """Each program runs unchanged, with warnings as errors, and writes nothing to stderr."""
    ran = outputs[example.title]

    assert (0, example.output) == (ran.status, ran.output), ran.errors
    assert ran.unexpected_errors == "" or example.shows_a_failure


def test_tools_accept_the_pages_flags() -> None:
    """The six tools accept the flags that the page gives them."""
    lines = command_lines(PAGE)

    assert {"to_nsq", "nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "nsq_stat"} == set(
        lines
    )
    assert all(is_accepted(name, words) for name, words in lines.items())


def test_the_readmes_consumer_works(daemons: Daemons, tmp_path: Path) -> None:
    """The consumer prints and finishes messages until Ctrl-C."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    program = next(block for block in PROGRAM.findall(text) if "Consumer" in block)
    program = program.replace("127.0.0.1:4161", daemons.addresses["127.0.0.1:4161"])
    daemons.nsqd.post("/pub?topic=greetings", b"one")

    ran = run_sparq(program, "1 b'one'\n", tmp_path, waits=True)

    assert "1 b'one'\n" == ran.output
    assert ran.errors.rstrip().endswith("KeyboardInterrupt")
    assert 1 == daemons.nsqd.channel("greetings", "hello")["finish_count"]


def test_another_command_creates_the_watched_channel() -> None:
    """`nsq_stat` fails on a missing channel, so another command of the page must create it."""
    lines = command_lines(PAGE)
    watched = parse(nsq_stat.Options, nsq_stat.PROGRAM, lines["nsq_stat"])
    made = parse(nsq_to_file.Options, nsq_to_file.PROGRAM, lines["nsq_to_file"])

    assert (watched.topic, watched.channel) == (made.topics[0], made.channel)
