"""docs/complaints.md has every thread of the survey, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from sparq.client import Consumer, Producer
from tests.scenarios.docs.examples import DOCS
from tests.support.servers import spawn_nsqd
from tests.support.waiting import until

TESTS = Path(__file__).parents[2]
TEXT = (DOCS / "complaints.md").read_text(encoding="utf-8")
THREADS = {
    "pynsq": {3, 95, 96, 137, 203, 224, 246},
    "nsq": {159, 607, 1069, 1146},
    "go-nsq": {97, 116, 134, 145, 180, 206, 243, 250, 257, 311, 322, 342, 344, 354, 360, 365},
    "nsqjs": {69, 74, 109},
}
"""The issues found in the survey of the trackers."""


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_the_table_lists_exactly_the_surveyed_issues() -> None:
    """The table has exactly the issues of the survey."""
    found: dict[str, set[int]] = {name: set() for name in THREADS}
    for asked, *_ in rows():
        repository = ""
        for name, number in re.findall(r"([\w-]*)#(\d+)", asked):
            repository = name or repository
            found[repository].add(int(number))

    assert THREADS == found


def test_every_row_names_existing_tests() -> None:
    """Every row names tests as `file::function`, and they exist."""
    for asked, _, held in rows():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", held)
        assert named, asked
        for file, function in named:
            assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), function


async def test_a_new_channel_gets_no_older_messages(tmp_path: Path) -> None:
    """A new channel gets no older messages if the topic has another channel.

    An old channel can be moved to the end by a seek.
    """
    with spawn_nsqd(tmp_path) as nsqd:
        async with Producer(nsqd.tcp) as producer:
            nsqd.post("/topic/create?topic=t")
            nsqd.post("/channel/create?topic=t&channel=old")
            await producer.publish("t", b"before")
            async with Consumer("t", "new#ephemeral", nsqd_tcp_addresses=nsqd.tcp) as consumer:
                await until(lambda: consumer.connections)
                await producer.publish("t", b"after")
                message = await anext(consumer)
                await message.finish()
        nsqd.post("/channel/seek?topic=t&channel=old&to=latest")

        assert b"after" == message.body
        assert 0 == nsqd.channel("t", "old")["depth"]
