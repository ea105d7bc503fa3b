"""to_nsq: records, rates, and the program with real nsqds, flag by flag."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.client import Consumer
from sparq.tools.commands import ToolError
from sparq.tools.terminal import Pipe
from sparq.tools.to_nsq import (
    Options,
    Pace,
    RecordPublisher,
    RecordSplitter,
    follow,
    publish_runs,
    serve,
)
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.tool_options import parse
from tests.support.waiting import until

STEPS = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), max_size=50)


class Publishing:
    """A running to_nsq with a pipe as its input."""

    def __init__(self, *words: str) -> None:
        self._reading, self._writing = os.pipe()
        self.stop = asyncio.Event()
        # On a busy machine nsqd may be slow to accept a connection.
        options = parse(Options, "to_nsq", ("--wait-for-nsqd=1m", *words))
        self._input = Pipe(self._reading)
        self.task = asyncio.create_task(serve(options, self.stop, self._input))

    async def say(self, data: bytes) -> None:
        """Write to its input."""
        await asyncio.to_thread(os.write, self._writing, data)

    async def end(self, data: bytes = b"") -> int:
        """Write, close the input, and wait for the exit status."""
        if data:
            await self.say(data)
        os.close(self._writing)
        try:
            return await self.task
        finally:
            await self._input.read()  # a signal leaves a read pending, which ends here
            os.close(self._reading)


def words(topic: str, *nsqds: NsqdServer) -> list[str]:
    return [f"--topic=to.{topic}", *(f"--nsqd-tcp-address={nsqd.tcp}" for nsqd in nsqds)]


def count(nsqd: NsqdServer, topic: str) -> int:
    """Return the number of messages published to the topic."""
    topics = nsqd.get_json(f"/stats?format=json&topic=to.{topic}")["topics"] or [{}]
    return int(topics[0].get("message_count", 0))


async def bodies(nsqd: NsqdServer, topic: str, number: int) -> list[bytes]:
    """Finish `number` messages of the topic, which must be all; return their bodies."""
    assert number == count(nsqd, topic)
    found = []
    options = {"nsqd_tcp_addresses": nsqd.tcp, "max_in_flight": 100}
    async with Consumer(f"to.{topic}", "c", **options) as consumer:
        while len(found) < number:
            message = await anext(consumer)
            found.append(message.body)
            await message.finish()
    return found


async def test_records_become_messages(nsqd: NsqdServer) -> None:
    """The order is kept, empty records are skipped; the last one needs no newline."""
    running = Publishing(*words("lines", nsqd))

    assert 0 == await running.end(b"one\n\n\xff\x00two\r\n\nthree")
    assert [b"one", b"\xff\x00two\r", b"three"] == await bodies(nsqd, "lines", 3)


@pytest.mark.parametrize("delimiter", [b"\t", b"\xff", b"a"])
async def test_records_end_at_the_delimiter(nsqd: NsqdServer, delimiter: bytes) -> None:
    """Any single byte can be the delimiter."""
    topic = f"delimiter_{delimiter.hex()}"
    running = Publishing(*words(topic, nsqd), f"--delimiter={os.fsdecode(delimiter)}")

    assert 0 == await running.end(b"1\n2" + delimiter + b"3" + delimiter)
    assert [b"1\n2", b"3"] == await bodies(nsqd, topic, 2)


async def test_every_nsqd_gets_every_record(nsqds: tuple[NsqdServer, NsqdServer]) -> None:
    """An nsqd whose address is repeated gets each record once."""
    running = Publishing(*words("every", *nsqds, nsqds[0]))

    assert 0 == await running.end(b"a\nb\n")
    for nsqd in nsqds:
        assert [b"a", b"b"] == await bodies(nsqd, "every", 2)


async def test_records_are_published_at_the_rate(nsqd: NsqdServer) -> None:
    """The first record is published immediately, then one each 50 ms."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    running = Publishing(*words("rate", nsqd), "--rate=20")

    assert 0 == await running.end(b"".join(b"%d\n" % number for number in range(8)))
    assert clock() - begun >= 7 / 20
    assert [b"%d" % number for number in range(8)] == await bodies(nsqd, "rate", 8)


async def test_many_and_large_records_are_published(nsqd: NsqdServer) -> None:
    """More data than a pipe holds, and a record that is larger than a run, are published."""
    records = [b"%05d" % number + bytes(number % 700) for number in range(3000)]
    records[1500] = b"y" * 1_048_576
    expected = [record.replace(b"\n", b"") for record in records]
    running = Publishing(*words("many", nsqd))

    assert 0 == await running.end(b"\n".join(records))
    assert expected == await bodies(nsqd, "many", 3000)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """An nsqd with small size limits."""
    flags = ("--max-msg-size=1000", "--max-body-size=900")
    with spawn_nsqd(tmp_path_factory.mktemp("strict"), *flags) as server:
        yield server


async def test_a_refused_record_is_named(strict: NsqdServer, nsqd: NsqdServer) -> None:
    """The error names the record; those before it are published, those after it are not."""
    running = Publishing(*words("refused", nsqd, strict))
    await running.say(b"a\n")
    await until(lambda: count(strict, "refused") == 1)
    records = [b"b", b"c" * 1001, b"d"]

    with pytest.raises(
        ToolError, match=rf"^record 3 \(1001 bytes\) is not published to {strict.tcp}"
    ):
        await running.end(b"\n".join(records))
    assert [b"a", b"b"] == await bodies(strict, "refused", 2)


async def test_a_refused_run_is_published_in_smaller_runs(
    strict: NsqdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused run is published in smaller ones, in order; later runs keep the smaller size."""
    records = [b"%d" % number * 50 for number in range(100, 140)]
    running = Publishing(*words("runs", strict))
    for half in (records[:20], records[20:]):
        refused = caplog.text.count("E_BAD_BODY")
        sent = count(strict, "runs")
        await running.say(b"".join(record + b"\n" for record in half))
        await until(lambda sent=sent: count(strict, "runs") == sent + 20)

    assert refused == caplog.text.count("E_BAD_BODY") > 0
    assert 0 == await running.end(b"x" * 990)
    assert [*records, b"x" * 990] == await bodies(strict, "runs", 41)


async def test_complete_records_are_published_after_a_signal(
    nsqd: NsqdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Complete records are published at any rate; an incomplete one is logged, not published."""
    running = Publishing(*words("stopped", nsqd), "--rate=1")
    await running.say(b"a\nb\nc\nhalf")
    await until(lambda: count(nsqd, "stopped") == 1)
    running.stop.set()

    assert 0 == await asyncio.wait_for(running.task, 5)
    assert [b"a", b"b", b"c"] == await bodies(nsqd, "stopped", 3)
    assert "stopped within a record: its first 4 bytes are not published" in caplog.text
    await running.end()


async def test_a_record_without_a_delimiter_is_an_error() -> None:
    """The error names the record and the flag that is probably wrong."""
    reading, writing = os.pipe()
    os.write(writing, b"a" * 20)
    stop = asyncio.Event()
    publisher = RecordPublisher(parse(Options, "to_nsq", []), {}, stop)

    with pytest.raises(ToolError, match=r"record 1 is too long: .* check --delimiter"):
        await follow(Pipe(reading), RecordSplitter(b"\n", bytes_max=10), publisher, stop)
    os.close(writing)
    os.close(reading)


def test_runs_are_limited_in_number_and_bytes() -> None:
    """Runs are limited in number and bytes; a larger record has a run for itself."""
    assert [[b"a"] * 1000, [b"a"] * 200] == [list(run) for run in publish_runs([b"a"] * 1200)]
    parts = [b"aa", b"bb", b"c" * 9, b"d", b"eeeee"]
    assert [parts[:2], parts[2:3], parts[3:4], parts[4:]] == [
        list(run) for run in publish_runs(parts, 5)
    ]
    assert [] == list(publish_runs([]))


@given(st.integers(1, 1000), STEPS)
def test_the_rate_is_never_exceeded(rate: int, steps: list[tuple[int, float]]) -> None:
    """At any time at most one record, plus the rate times the time since the start."""
    pace, now, taken = Pace(rate, 5.0), 5.0, 0
    for count, pause in steps:
        now += pause
        got = pace.take(count, now)
        taken += got
        assert got <= min(count, rate)
        assert taken <= 1 + rate * (now - 5.0) + 1e-5


@given(st.integers(1, 1000), st.integers(1, 200))
def test_the_rate_is_reached(rate: int, count: int) -> None:
    """A caller that waits until records are due has passed all of them in count / rate seconds."""
    pace, taken = Pace(rate, 0.0), 0
    while taken < count:
        taken += pace.take(1, pace.due_at)

    assert math.isclose(pace.due_at, count / rate, rel_tol=1e-5)


def test_an_idle_time_allows_a_seconds_worth() -> None:
    """It begins with one record; a clock may go back."""
    pace = Pace(10, 0.0)
    assert 1 == pace.take(100, 0.0)
    assert 0 == pace.take(100, 0.05)
    assert 10 == pace.take(100, 3600.0)
    assert 0 == pace.take(100, 0.0)
    assert math.isclose(3600.1, pace.due_at)


@given(
    st.lists(st.sampled_from([b"\n", b"\x00", b"a", b"bc"])).map(b"".join),
    st.lists(st.integers(0, 100)),
    st.sampled_from([b"\n", b"\x00", b"a"]),
)
def test_records_are_the_same_however_they_arrive(
    data: bytes, cuts: list[int], delimiter: bytes
) -> None:
    """Records are the non-empty parts between delimiters; the last one needs none."""
    records = RecordSplitter(delimiter)
    found = []
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for first, end in itertools.pairwise(places):
        found += records.feed(data[first:end])
    if records.rest:
        found.append(records.rest)

    assert [part for part in data.split(delimiter) if part] == found


def test_an_incomplete_record_has_a_size_limit() -> None:
    """The limit applies to the incomplete record, not to complete ones."""
    records = RecordSplitter(b"\n", bytes_max=10)
    assert [b"0123456789"] == records.feed(b"0123456789\n01234")
    records.feed(b"56789")

    with pytest.raises(ValueError, match="no delimiter within 10 bytes"):
        records.feed(b"x")
