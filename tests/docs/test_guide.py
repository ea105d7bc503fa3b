"""docs/guide.md: each of its programs, run against a real nsqd, prints what the page says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.examples import Example, count_of_programs, examples, run_all
from tests.docs.running import Ran
from tests.servers import spawn_nsqd, spawn_nsqlookupd

PAGE = "guide.md"
EXAMPLES = examples(PAGE)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ran]]:
    """What the programs print, each against the daemons that are running here."""
    folder = tmp_path_factory.mktemp("guide")
    with (
        spawn_nsqlookupd(folder) as lookupd,
        spawn_nsqd(folder, lookupds=(lookupd,)) as nsqd,
    ):
        addresses = {"127.0.0.1:4150": nsqd.tcp, "127.0.0.1:4161": lookupd.http}
        yield run_all(PAGE, addresses, folder)


def test_every_program_of_the_page_is_run() -> None:
    """None is without the output by which it is held."""
    assert 10 < len(EXAMPLES) == count_of_programs(PAGE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_a_program_prints_what_the_page_says(example: Example, outputs: dict[str, Ran]) -> None:
    """As it stands, with warnings as errors, and without a word on stderr."""
    ran = outputs[example.title]

    assert (0, example.output) == (ran.status, ran.output), ran.errors
    assert ran.errors == "" or example.may_complain
