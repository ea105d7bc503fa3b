"""The programs of docs/guide.md and README.md, run with real daemons, print the pages' outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scenarios.docs import pages
from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd

GUIDE = pages.text_of("docs/guide.md")
PROGRAMS = pages.blocks(GUIDE, "python")
OUTPUTS = pages.blocks(GUIDE, "")
SHOWS_A_FAILURE = ("raise ValueError", '127.0.0.1:1"')
"""Text of programs that show a failure, and therefore may write log lines to stderr."""
SLOW = re.compile(r"^nsqd \S+: TimeoutError\n", re.M)
"""A log line: nsqd did not answer within `dial_timeout`, and is tried again."""


class Daemons(NamedTuple):
    """An nsqd, and the real addresses for those on the pages."""

    nsqd: NsqdServer
    addresses: dict[str, str]

    def real(self, text: str) -> str:
        """A program with the real addresses."""
        for written, real in self.addresses.items():
            text = text.replace(written, real)
        return text


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """An nsqd that is registered with an nsqlookupd."""
    folder = tmp_path_factory.mktemp("guide")
    with spawn_nsqlookupd(folder) as lookupd, spawn_nsqd(folder, lookupds=(lookupd,)) as nsqd:
        yield Daemons(nsqd, {"127.0.0.1:4150": nsqd.tcp, "127.0.0.1:4161": lookupd.http})


EXAMPLES = [*zip(PROGRAMS, OUTPUTS, strict=True)]


@pytest.mark.parametrize(("program", "output"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_program_prints_what_the_page_says(
    program: str, output: str, daemons: Daemons, tmp_path: Path
) -> None:
    """Each program runs, with warnings as errors, and writes nothing to stderr."""
    waits = "SIGINT" in program
    ran = pages.run_client(daemons.real(program), output, tmp_path, waits=waits)

    assert (0, output) == (ran.status, ran.output), ran.errors
    assert "" == SLOW.sub("", ran.errors) or any(word in program for word in SHOWS_A_FAILURE)


def test_the_readmes_consumer_works(daemons: Daemons, tmp_path: Path) -> None:
    """The consumer prints and finishes messages until Ctrl-C."""
    programs = pages.blocks(pages.text_of("README.md"), "python")
    program = next(text for text in programs if "Consumer" in text)
    daemons.nsqd.post("/pub?topic=greetings", b"one")

    ran = pages.run_client(daemons.real(program), "1 b'one'\n", tmp_path, waits=True)

    assert "1 b'one'\n" == ran.output
    assert ran.errors.rstrip().endswith("KeyboardInterrupt")
    assert 1 == daemons.nsqd.channel("greetings", "hello")["finish_count"]
