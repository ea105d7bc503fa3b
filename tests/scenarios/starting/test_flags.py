"""Flags that have an effect only in a whole daemon: ports, names, topology, logs.

Every other flag is tested where its rule lives, by the option of the same name; the tables of
tests/nsqd/test_options.py and tests/nsqlookupd/test_options.py have all flags.
"""

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from sparq.protocol.commands import identify, mpub, rdy, sub
from tests.support.lookup_peer import LookupPeer
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import FRAME_ERROR, MAGIC, OK, V2Client, fin_each
from tests.support.waiting import wait_for

LOG_FLAGS = ("--log-prefix=<here> ", "--log-utc", "--log-repeats=2", "--debug-routes=false")
NSQD_FLAGS = (
    *("--broadcast-tcp-port=1111", "--broadcast-http-port=2222", "--node-id=77"),
    *("--topology-region=north", "--topology-zone=pole", "--max-connections=9"),
    *("--enable-experiment=topology-aware-consumption", "--min-output-buffer-timeout=50ms"),
    *("--e2e-processing-latency-percentile=0.5", "--e2e-processing-latency-window-time=1s"),
    *("--deflate=false", "--snappy=false", "--max-line-size=4096"),
    *("--worker-id", "--queue-scan-worker-pool-max=9", "--queue-scan-selection-count=9"),
)
NSQLOOKUPD_FLAGS = (
    *("--broadcast-address=lookup.example", "--inactive-producer-timeout=1s"),
    *("--tombstone-lifetime=1.5s", "--max-registrations=2", "--max-names=4"),
)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An nsqlookupd with its flags."""
    folder = tmp_path_factory.mktemp("nsqlookupd")
    with spawn_nsqlookupd(folder, *NSQLOOKUPD_FLAGS, *LOG_FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Server) -> Iterator[NsqdServer]:
    """An nsqd with its flags, registered with that nsqlookupd."""
    folder = tmp_path_factory.mktemp("nsqd")
    with spawn_nsqd(folder, *NSQD_FLAGS, *LOG_FLAGS, lookupds=(lookupd,)) as server:
        yield server


def producers(lookupd: Server, path: str) -> list[str]:
    return [one["broadcast_address"] for one in lookupd.get_json(path)["producers"]]


def introduce(line: V2Client, **facts: object) -> tuple[int, bytes]:
    """Send IDENTIFY; return its answer."""
    return line.ask(identify(json.dumps({"feature_negotiation": True, **facts}).encode()))


def test_nsqlookupd_lists_what_an_nsqd_broadcasts(nsqd: NsqdServer, lookupd: Server) -> None:
    """Ports, region and zone are those of the flags, not the real ones."""
    (node,) = wait_for(lambda: lookupd.get_json("/nodes")["producers"])

    assert (1111, 2222, "north", "pole") == tuple(
        node[key] for key in ("tcp_port", "http_port", "topology_region", "topology_zone")
    )


def test_consumers_in_nsqds_own_zone_come_first(nsqd: NsqdServer) -> None:
    """They get all messages that their RDY allows; an id has the node's id in its top ten bits."""
    with V2Client(nsqd) as near, V2Client(nsqd) as far:
        for line, zone in ((far, "equator"), (near, "pole")):
            introduce(line, topology_region="north", topology_zone=zone)
            assert line.ask(sub("zones", "c")) == OK
            line.send(rdy(10))
            # The answer to a later command confirms that nsqd has processed the RDY.
            assert line.ask(mpub("other", [b"x"])) == OK
        assert far.ask(mpub("zones", [b"x"] * 8)) == OK
        messages = near.messages(8)
        near.send(fin_each(messages))

    assert {77} == {int(message.id, 16) >> 54 for message in messages}
    figures = nsqd.channel("zones", "c")
    assert figures["zone_local_msg_count"] == 8
    latency = figures["e2e_processing_latency"]
    assert [0.5] == [entry["quantile"] for entry in latency["percentiles"]]
    wait_for(lambda: not nsqd.channel("zones", "c")["e2e_processing_latency"]["count"])


def test_what_the_flags_forbid_is_refused(nsqd: NsqdServer) -> None:
    """Compression, short timeouts, long lines, and connections beyond the limit."""
    with V2Client(nsqd) as line:
        granted = json.loads(introduce(line, output_buffer_timeout=50, deflate=True)[1])
        assert (granted["output_buffer_timeout"], granted["deflate"]) == (50, False)
    with V2Client(nsqd) as line:
        assert json.loads(introduce(line, snappy=True)[1])["snappy"] is False
    with V2Client(nsqd) as line:
        text = b"E_BAD_BODY IDENTIFY output buffer timeout (49) is invalid"
        assert introduce(line, output_buffer_timeout=49) == (FRAME_ERROR, text)
    with V2Client(nsqd) as line:
        line.send(b"NOP" + b" " * 4096)
        assert line.rest() == b""
    lines: list[V2Client] = []

    def is_full() -> bool:
        lines.append(V2Client(nsqd))
        try:
            return introduce(lines[-1])[0] == FRAME_ERROR
        except ConnectionError:
            return True

    wait_for(is_full)
    assert 2 <= len(lines) <= 10
    assert lines[0].ask(mpub("t", [b"x"])) == OK
    for line in lines:
        line.close()


def test_silent_and_tombstoned_nsqds_are_hidden(lookupd: Server) -> None:
    """A silent nsqd is hidden until its next PING, a tombstoned one for the lifetime."""
    with LookupPeer(lookupd) as peer:
        answer = json.loads(peer.identify("silent"))
        assert answer["broadcast_address"] == "lookup.example"
        peer.ask(b"REGISTER t\n")
        wait_for(lambda: producers(lookupd, "/lookup?topic=t") == [])
        peer.ask(b"PING\n")
        assert producers(lookupd, "/lookup?topic=t") == ["silent"]
        lookupd.post("/topic/tombstone?topic=t&node=silent:4151")
        assert producers(lookupd, "/lookup?topic=t") == []
        wait_for(lambda: peer.ask(b"PING\n") and producers(lookupd, "/lookup?topic=t"))


def test_registrations_and_names_are_limited(lookupd: Server) -> None:
    """An nsqd has at most two registrations, and nsqlookupd at most four names."""
    with LookupPeer(lookupd) as peer:
        peer.identify("greedy")
        assert peer.ask(b"REGISTER t c\n") == b"OK"
        assert peer.ask(b"REGISTER t\n") == b"E_INVALID REGISTER too many registrations"
    answers = []
    for number in range(4):
        with LookupPeer(lookupd) as peer:
            peer.identify("127.0.0.1")
            answers.append(peer.ask(b"REGISTER n%d\n" % number))
    assert answers[-1] == b"E_INVALID REGISTER too many topics and channels"


@pytest.mark.parametrize(("name", "magic"), [("nsqd", MAGIC), ("lookupd", b"  V1")])
def test_log_lines_are_in_utc_and_repeats_are_left_out(
    name: str, magic: bytes, request: pytest.FixtureRequest
) -> None:
    """The time is UTC, and at most two equal lines a minute are logged; debug routes are off."""
    server: Server = request.getfixturevalue(name)
    before = server.log_text.count("TCP: new client(")
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=30) as client:
            client.sendall(magic + b"NONSENSE\n")
            while client.recv(1 << 16):
                pass
    lines = server.log_text.splitlines()
    logged = datetime.strptime(lines[0][len("<here> ") :][:19], "%Y/%m/%d %H:%M:%S")
    after = server.log_text.count("TCP: new client(")

    assert after - before <= 2 <= after
    assert all(line.startswith("<here> 20") for line in lines)
    assert abs(datetime.now(UTC) - logged.replace(tzinfo=UTC)) < timedelta(minutes=10)
    assert server.request("GET", "/debug/pprof/")[0] == 404
