"""The benchmark of brokers with small runs: each installed broker does each kind of run."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from bench.__main__ import main
from bench.generator import fill
from bench.lines import LINES, Shape, at_once, deliver, latency, publish
from bench.peers import CONTESTANTS, Contestant, chosen
from bench.peers.nsq import NsqPeer
from bench.peers.peer import Peer
from bench.table import Servers, measure

from bench import load, queued

SECONDS = 0.1
SLOW_SECONDS = 60.0
PROGRAMS = ["sparq", "go", "redis-later", "nats", "rabbitmq", "beanstalkd-later"]


def contestant_of(key: str) -> Contestant:
    """Return a contestant by its command-line name; skip the test if it is not installed."""
    (contestant,) = (each for each in CONTESTANTS if each.key == key)
    if reason := contestant.missing():
        pytest.skip(reason)
    return contestant


@pytest.fixture(params=PROGRAMS)
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    """Each broker, running."""
    made = contestant_of(request.param).make(tmp_path / "peer")
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_peer_does_every_kind_of_run(peer: Peer) -> None:
    """Every broker publishes, delivers, and does both concurrently; window 1 also has times."""
    shapes = [Shape(connections=2), Shape(window=1)]
    if "batch" in peer.can:
        shapes.append(Shape(batch=10, window=4))
    if "http" in peer.can:
        shapes.append(Shape(window=1, over_http=True))
    for shape in shapes:
        published = uvloop.run(publish(shape)(peer, SECONDS))
        assert published.messages > 0
        assert published.server > 0
        assert published.generator > 0
        assert (shape.window == 1) == bool(published.times)

    delivered = uvloop.run(deliver(20, 2, 60)(peer, SLOW_SECONDS))
    assert 60 == delivered.messages
    channels = 2 if "channels" in peer.can else 1
    both = uvloop.run(at_once(Shape(batch=10, window=4, channels=channels))(peer, SECONDS))
    assert both.messages > 0
    times = uvloop.run(latency(100, 10)(peer, SECONDS)).times
    assert 10 == len(times)
    assert all(0 < seconds < SLOW_SECONDS for seconds in times)


@pytest.mark.parametrize("key", ["sparq", "redis-later"])
def test_a_backlog_is_delivered_after_a_kill(key: str, tmp_path: Path) -> None:
    """After a kill the broker delivers its backlog again; its restart time and memory are shown."""
    contestant = contestant_of(key)

    found = queued.measure(contestant, tmp_path, 20_000)

    assert found.messages > 0
    assert found.restart_seconds > 0
    assert min(found.memory_mib) > 1
    assert found.drain.messages > 0
    assert contestant.label in found.line()


def test_generator_and_server_count_the_same(tmp_path: Path) -> None:
    """The generator counts as many messages as the server."""
    peer = contestant_of("sparq").make(tmp_path / "peer")
    assert isinstance(peer, NsqPeer)
    try:
        peer.start()
        peer.prepare("t", ["ch0"], 1)

        counted = uvloop.run(fill(peer, "t", load.body(50), 2_000, SLOW_SECONDS))

        assert 2_000 == counted
        assert '"depth":2000' in peer.request("GET", "/stats?format=json&topic=t").replace(" ", "")
    finally:
        peer.close()


def test_contestants_take_turns_on_a_line(tmp_path: Path) -> None:
    """Each contestant does as many rounds as requested; no server or file remains."""
    line = next(each for each in LINES if each.name == "HTTP /pub, 1 connection")
    contestants = [contestant_of("sparq"), contestant_of("sparq-later")]
    servers = Servers(tmp_path)
    try:
        result = measure(line, contestants, servers, rounds=2, seconds=SECONDS)
        programs = [servers.peer(each).program for each in contestants]
        assert all(program.pids() for program in programs)
    finally:
        servers.close()

    assert ["sparq", "sparq-later"] == list(result.cells)
    assert [2, 2] == [len(cell.rounds) for cell in result.cells.values()]
    assert not any(tmp_path.iterdir())


def test_the_command_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has the chosen lines and contestants, also as a Markdown file; no others remain."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    words = "--parts peers --peers sparq --only MPUB,\\ one --rounds 1 --markdown table.md"
    try:
        main([*shlex.split(words), "--seconds", str(SECONDS)])
    finally:
        signal.signal(signal.SIGTERM, before)

    printed = capsys.readouterr().out
    assert "MPUB, one at a time, 200 of 200 B" in printed
    assert "sparq, sync before OK" in printed
    assert "PUB, pipelined" not in printed
    assert "| sparq, sync before OK |" in (tmp_path / "table.md").read_text()
    assert ["table.md"] == [path.name for path in tmp_path.iterdir()]


def test_contestants_are_chosen_by_part_and_name() -> None:
    """Contestants are chosen by the part of the benchmark and by name; line names are unique."""
    assert ["sparq", "nats"] == [each.key for each in chosen("speed", ["nats", "sparq"])]
    assert "go" not in [each.key for each in chosen("backlog", [])]
    assert len(LINES) == len({line.name for line in LINES})
