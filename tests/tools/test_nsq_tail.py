"""nsq_tail with real nsqds: the effect of each flag, which messages are finished, and its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.tools.commands import ToolError
from sparq.tools.nsq_tail import Options
from sparq.tools.nsq_tail import serve as tail
from sparq.tools.terminal import Pipe
from tests.support.servers import NsqdServer, Server
from tests.support.tool_options import parse
from tests.support.waiting import until


def publish(nsqd: NsqdServer, topic: str, *bodies: bytes) -> None:
    nsqd.post(f"/mpub?topic={topic}&binary=false", b"\n".join(bodies))


def only_channel(nsqd: NsqdServer, topic: str) -> dict[str, Any]:
    """Return the only channel of a topic if it has a consumer; else ``{}``."""
    (stats,) = nsqd.get_json(f"/stats?format=json&topic={topic}")["topics"] or [{}]
    (channel,) = stats.get("channels") or [{}]
    return channel if channel.get("clients") else {}


class Tail:
    """A running nsq_tail that writes to a file."""

    def __init__(self, path: Path, words: tuple[str, ...]) -> None:
        self.path = path
        self.stop = asyncio.Event()
        # On a busy machine nsqd may be slow to accept a connection.
        options = parse(Options, "nsq_tail", ("--wait-for-nsqd=1m", *words))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        self.task = asyncio.create_task(tail(options, self.stop, Pipe(self._descriptor)))

    @property
    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for the condition; the end of nsq_tail before it is a failure."""
        await until(lambda: self.task.done() or condition())
        assert condition(), self.task

    async def end(self) -> int:
        self.stop.set()
        try:
            return await self.task
        finally:
            os.close(self._descriptor)


@asynccontextmanager
async def tailing(path: Path, *words: str) -> AsyncIterator[Tail]:
    """Run nsq_tail inside the block; then stop it and assert exit status 0."""
    running = Tail(path / "lines", words)
    yield running
    assert 0 == await running.end()


async def test_lines_of_several_topics_show_their_topic(
    nsqd: NsqdServer, lookupd: Server, tmp_path: Path
) -> None:
    """Topics are found through nsqlookupd, each line shows its topic; bodies may be any bytes."""
    publish(nsqd, "several_1", b"one", b"\xff\x00 two")
    publish(nsqd, "several_2", b"three")
    words = ["--topic=several_1", "--topic", "several_2", "-topic=several_1", "-print-topic"]
    expected = {b"several_1 | one", b"several_1 | \xff\x00 two", b"several_2 | three"}

    async with tailing(tmp_path, *words, f"--lookupd-http-address={lookupd.http}") as running:
        await running.until(lambda: len(running.lines) >= 3)
        assert 1 == only_channel(nsqd, "several_1")["client_count"]

    assert expected == set(running.lines)
    assert 3 == len(running.lines)


async def test_the_default_channel_is_ephemeral(nsqd: NsqdServer, tmp_path: Path) -> None:
    """The default channel is ephemeral with a random name; it is deleted at the end."""
    nsqd.post("/topic/create?topic=own")
    async with tailing(tmp_path, "--topic=own", f"--nsqd-tcp-address={nsqd.tcp}") as running:
        await running.until(lambda: only_channel(nsqd, "own"))
        name = only_channel(nsqd, "own")["channel_name"]
        publish(nsqd, "own", b"a", b"b")
        await running.until(lambda: len(running.lines) >= 2)

    assert [b"a", b"b"] == running.lines
    assert name.startswith("tail")
    assert name.endswith("#ephemeral")
    assert name[4:10].isdigit()
    await until(lambda: not nsqd.get_json("/stats?format=json&topic=own")["topics"][0]["channels"])


async def test_it_ends_after_the_requested_number_of_messages(
    nsqd: NsqdServer, tmp_path: Path
) -> None:
    """nsq_tail ends after -n messages; unprinted ones are requeued immediately."""
    publish(nsqd, "many", *[b"%d" % number for number in range(10)])
    words = ["--topic=many", "--channel=c", "-n=3", "-max-in-flight=50"]
    running = Tail(tmp_path / "lines", (*words, f"--nsqd-tcp-address={nsqd.tcp}"))

    assert 0 == await running.task
    assert 0 == await running.end()
    assert [b"0", b"1", b"2"] == running.lines
    await until(lambda: nsqd.channel("many", "c")["client_count"] == 0)
    channel = nsqd.channel("many", "c")
    assert (7, 0) == (channel["depth"], channel["in_flight_count"])


async def test_the_number_applies_to_all_topics_together(nsqd: NsqdServer, tmp_path: Path) -> None:
    """The limit applies to the sum over all topics."""
    for topic in ("both_1", "both_2"):
        publish(nsqd, topic, b"a", b"b", b"c")
    words = ["--topic=both_1", "--topic=both_2", "--channel=c", "-n=4"]
    running = Tail(tmp_path / "lines", (*words, f"--nsqd-tcp-address={nsqd.tcp}"))

    assert 0 == await running.task
    await running.end()
    assert 4 == len(running.lines)
    left = sum(nsqd.channel(topic, "c")["depth"] for topic in ("both_1", "both_2"))
    assert 2 == left


async def test_max_in_flight_is_not_exceeded(nsqd: NsqdServer, tmp_path: Path) -> None:
    """RDY does not exceed --max-in-flight, nor a smaller -n."""
    nsqd.post("/topic/create?topic=flight")
    words = ("--topic=flight", f"--nsqd-tcp-address={nsqd.tcp}", "--max-in-flight=9")
    for more, ready in (((), 9), (("-n=4",), 4)):
        async with tailing(tmp_path, *words, *more, f"--channel=of_{ready}") as running:

            def readies(name: str = f"of_{ready}") -> list[int]:
                clients = nsqd.channel("flight", name).get("clients") or []
                return [client["ready_count"] for client in clients]

            await running.until(lambda ready=ready: readies() == [ready])


async def test_unwritten_messages_are_requeued(nsqd: NsqdServer) -> None:
    """A full disk is an error message, a closed pipe is not; unwritten messages are requeued."""
    publish(nsqd, "unwritten", b"x")
    words = ["--topic=unwritten", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp}"]
    options = parse(Options, "nsq_tail", words)
    full = os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    os.close(reading)

    with pytest.raises(ToolError, match=r"failed to write to standard output - No space left"):
        await tail(options, asyncio.Event(), Pipe(full))
    with pytest.raises(BrokenPipeError):
        await tail(options, asyncio.Event(), Pipe(writing))

    await until(lambda: nsqd.channel("unwritten", "c")["client_count"] == 0)
    channel = nsqd.channel("unwritten", "c")
    assert (1, 0) == (channel["depth"], channel["in_flight_count"])
    assert channel["requeue_count"] >= 2
    os.close(full)
    os.close(writing)
