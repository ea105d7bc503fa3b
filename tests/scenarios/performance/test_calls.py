"""Counts function calls per message: work done once per batch must not be done per message.

Only calls of sparq's own functions count, on a real disk without a sync before each OK. The
occasional merge of the newest batches in memory (`log.block`) is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import sparq
from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.broker.session import V2Session
from sparq.log.disk import RealDisk
from sparq.protocol import commands
from sparq.protocol.instant import Instant
from sparq.protocol.parser import CommandParser
from tests.support.v2_client import fin_each
from tests.support.v2_stream import FRAME_MESSAGE, V2Stream, decode_message

# Not just "/sparq/": the clone, too, may be called so, with the bench and the tests in it.
SPARQ = f"{Path(sparq.__file__).parent}/"

SINGLE_PUB_CALLS_MAX = 34
"""Calls from the bytes of a PUB to those of its OK."""
SINGLE_PUB_FILES_MAX = 11
"""Number of source files with these functions, including `log.block`."""
DELIVERED_PUB_CALLS_MAX = 90
DELIVERED_PUB_FILES_MAX = 23
"""The same for a PUB whose message a consumer gets at once, up to the bytes of the message."""
FIN_CALLS_MAX = 36
"""Calls from the bytes of a FIN to its record in the ledger's file."""
FIN_FILES_MAX = 14
DELIVERY_FILES_MAX = 11
MANY_PUBS_CALLS_MAX = 51
"""Calls for a hundred PUBs that arrive in one read."""
MANY_FINS_CALLS_MAX = 62
"""Calls for a hundred FINs and the next delivery, within one block."""


def now() -> Instant:
    """The current time."""
    return Instant(time.time_ns(), time.monotonic_ns())


class Line:
    """A broker and one client, driven as nsqd drives them."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(BrokerOptions(sync_every=2500), RealDisk(), str(path), now())
        self.broker.load(now())
        self.session: V2Session = self.broker.connect("10.0.0.1:5555", now())
        self.parser = CommandParser(self.broker.limits)

    def say(self, data: bytes) -> bytes:
        """Send bytes, and return the broker's output of the turn that follows."""
        self.parser.feed(data)
        at = now()
        while not self.parser.is_waiting and (command := self.parser.next()) is not None:
            self.broker.execute(self.session, command, at)
            self.parser.state = self.session.state
        while tasks := self.broker.end_turn(at):
            for topic_task in tasks:
                topic_task.task.run()
                topic_task.finish(at)
        output: list[bytes] = []
        for session in self.broker.take_sessions():
            output += map(bytes, self.broker.take_output(session))
        return b"".join(output)


def fins(answer: bytes) -> bytes:
    """FINs for the messages of an output."""
    stream = V2Stream()
    stream.feed(answer)
    frames = [data for kind, data in stream.frames() if kind == FRAME_MESSAGE]
    return fin_each([decode_message(data) for data in frames])


def files_of(call: Callable[[], object]) -> list[str]:
    """Return the source file of each call of one of sparq's functions."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SPARQ):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def calls_of(call: Callable[[], object]) -> int:
    """Count the calls of sparq's functions."""
    return sum(not file.endswith("log/block.py") for file in files_of(call))


def assert_least(tries: list[list[str]], calls_max: int, files_max: int) -> None:
    """Assert limits of calls and of files for the best of these lists of called files.

    Each by itself: what happens once in a while adds calls to one try and files to another.
    """
    assert min(map(len, tries)) <= calls_max
    files = min(map(set, tries), key=len)
    assert len(files) <= files_max, sorted(files)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    """An in-process connection to a topic that has messages."""
    line = Line(tmp_path)
    for _ in range(50):
        assert line.say(commands.pub("t", b"x" * 200)).endswith(b"OK")
    return line


def test_a_single_pub_stays_within_its_limits_of_calls(line: Line) -> None:
    """A single PUB stays within its limits of calls and files (minimum of 20 tries)."""
    one = commands.pub("t", b"x" * 200)

    assert min(calls_of(lambda: line.say(one)) for _ in range(20)) <= SINGLE_PUB_CALLS_MAX
    files = min((set(files_of(lambda: line.say(one))) for _ in range(20)), key=len)
    assert len(files) <= SINGLE_PUB_FILES_MAX, sorted(files)


def test_a_pub_to_a_waiting_consumer_stays_within_its_limits(line: Line) -> None:
    """From the bytes of a PUB to its OK and to the message at a consumer."""
    line.say(commands.sub("t", "c"))
    while answer := line.say(commands.rdy(100)):
        line.say(fins(answer))
    one = commands.pub("t", b"x" * 200)
    costs: list[list[str]] = []
    for _ in range(20):
        answers: list[bytes] = []
        files = files_of(lambda answers=answers: answers.append(line.say(one)))
        assert answers[0].count(b"x" * 200) == 1
        line.say(fins(answers[0]))
        costs.append(files)

    assert_least(costs, DELIVERED_PUB_CALLS_MAX, DELIVERED_PUB_FILES_MAX)


def test_a_fin_stays_within_its_limits_up_to_the_written_ledger(line: Line) -> None:
    """From the bytes of a FIN to the ledger's file, in calls and source files (least of 20)."""
    line.say(commands.sub("t", "c"))
    costs: list[list[str]] = []
    for _ in range(20):
        said = fins(line.say(commands.rdy(1)))
        line.say(commands.rdy(0))
        files = files_of(lambda said=said: line.say(said))
        costs.append(files)
        assert 0 == line.session.in_flight_count

    assert_least(costs, FIN_CALLS_MAX, FIN_FILES_MAX)


def test_a_delivery_stays_within_its_limit_of_files(line: Line) -> None:
    """From the end of the turn to the output of a consumer (least of 20 tries)."""
    line.say(commands.sub("t", "c"))
    answer = line.say(commands.rdy(1))
    deliveries: list[set[str]] = []
    for _ in range(20):
        line.parser.feed(fins(answer))
        command = line.parser.next()
        assert command is not None
        line.broker.execute(line.session, command, now())
        (topic,) = line.broker.turn.topics
        deliveries.append(set(files_of(lambda topic=topic: topic.end_turn(now()))))
        assert 1 == line.session.in_flight_count
        answer = line.say(b"")

    files = min(deliveries, key=len)
    assert len(files) <= DELIVERY_FILES_MAX, sorted(files)


def test_a_batch_stays_within_the_limits_of_calls(line: Line) -> None:
    """A hundred PUBs, and a hundred FINs with the next 100 deliveries, stay within their limits."""
    many = commands.pub("t", b"x" * 200) * 100
    assert min(calls_of(lambda: line.say(many)) for _ in range(5)) <= MANY_PUBS_CALLS_MAX

    line.say(commands.sub("t", "c"))
    answer = line.say(commands.rdy(100))
    answers: list[bytes] = []
    costs: list[int] = []
    for _ in range(4):
        said = fins(answer)
        assert said.count(b"FIN") == 100
        costs.append(calls_of(lambda said=said: answers.append(line.say(said))))
        answer = answers[-1]
    assert min(costs) <= MANY_FINS_CALLS_MAX
