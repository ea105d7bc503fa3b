"""Flags with an effect on the V2 protocol: limits, defaults, features, consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparq.protocol.commands import dpub, mpub, pub, rdy, sub
from tests.scenarios.starting.effects.common import ADDRESSES, granted, help_says, identify, refused
from tests.support.flag_rows import FlagServer, Row
from tests.support.v2_client import OK, V2Client, fin_each


def says(**facts: Any) -> Callable[[FlagServer], None]:
    """Return a check that IDENTIFY's answer has these values."""

    def check(server: FlagServer) -> None:
        asked = {"deflate": True, "deflate_level": 9}
        found = granted(server, **asked)
        assert {key: found[key] for key in facts} == facts

    return check


def refuses(what: str, **asked: Any) -> Callable[[FlagServer], None]:
    """Return a check that IDENTIFY with these values is refused."""

    def check(server: FlagServer) -> None:
        refused(server, f"E_BAD_BODY IDENTIFY {what} is invalid", identify(**asked))

    return check


def max_rdy_count(server: FlagServer) -> None:
    """RDY is accepted up to this count, not beyond; IDENTIFY returns the count."""
    says(max_rdy_count=9)(server)
    with V2Client(server) as line:
        assert line.ask(sub("rdy", "c#ephemeral")) == OK
        line.send(rdy(9))
        assert line.ask(rdy(10)) == (1, b"E_INVALID RDY count 10 out of range 0-9")


def max_msg_size(server: FlagServer) -> None:
    """A message that is one byte larger is refused, over TCP and HTTP."""
    refused(
        server,
        "E_BAD_MESSAGE PUB message too big 101 > 100",
        pub("t", b"x" * 100),
        pub("t", b"x" * 101),
    )
    assert server.request("POST", "/pub?topic=t", b"x" * 101)[0] == 413


def max_body_size(server: FlagServer) -> None:
    """A body that is one byte larger is refused, over TCP and HTTP."""
    bodies = [b"x" * 92] * 10  # 4 + 10 * (4 + 92) bytes
    refused(
        server, "E_BAD_BODY MPUB body too big 965 > 964", mpub("t", bodies), mpub("t", long(bodies))
    )
    assert server.request("POST", "/mpub?topic=t", b"x\n" * 482)[0] == 200
    assert server.request("POST", "/mpub?topic=t", b"x\n" * 482 + b"\n")[0] == 413


def long(bodies: list[bytes]) -> list[bytes]:
    return [*bodies[:-1], bodies[-1] + b"x"]


def msg_timeout(server: FlagServer) -> None:
    """An unfinished message is redelivered after this time; IDENTIFY returns it."""
    says(msg_timeout=1300)(server)
    with V2Client(server) as line:
        assert line.ask(pub("timeout", b"x")) == OK
        assert line.ask(sub("timeout", "c")) == OK
        line.send(rdy(1))
        (first,) = line.messages(1)
        (again,) = line.messages(1)
        assert (first.attempts, again.attempts) == (1, 2)
        line.send(fin_each([again]))


def max_msg_timeout(server: FlagServer) -> None:
    """A client cannot request a longer timeout; IDENTIFY returns the maximum."""
    says(max_msg_timeout=5000)(server)
    assert granted(server, msg_timeout=5000)["msg_timeout"] == 5000
    refuses("msg timeout (5001)", msg_timeout=5001)(server)


def max_req_timeout(server: FlagServer) -> None:
    """A longer delay is refused, over TCP and HTTP."""
    refused(
        server,
        "E_INVALID DPUB timeout 3001 out of range 0-3000",
        dpub("t", 3000, b"x"),
        dpub("t", 3001, b"x"),
    )
    assert server.request("POST", "/pub?topic=t&defer=3001", b"x")[0] == 400


def max_heartbeat_interval(server: FlagServer) -> None:
    """A longer interval in IDENTIFY is refused; /info returns the maximum."""
    granted(server, heartbeat_interval=40_000)
    refuses("heartbeat interval (40001)", heartbeat_interval=40_001)(server)
    assert server.get_json("/info")["max_heartbeat_interval"] == 40_000_000_000


def max_output_buffer_size(server: FlagServer) -> None:
    """A larger buffer in IDENTIFY is refused; /info returns the maximum."""
    assert granted(server, output_buffer_size=2000)["output_buffer_size"] == 2000
    refuses("output buffer size (2001)", output_buffer_size=2001)(server)
    assert server.get_json("/info")["max_output_buffer_size"] == 2000


def max_output_buffer_timeout(server: FlagServer) -> None:
    """A longer timeout in IDENTIFY is refused; /info returns the maximum."""
    assert granted(server, output_buffer_timeout=40_000)["output_buffer_timeout"] == 40_000
    refuses("output buffer timeout (40001)", output_buffer_timeout=40_001)(server)
    assert server.get_json("/info")["max_output_buffer_timeout"] == 40_000_000_000


def min_output_buffer_timeout(server: FlagServer) -> None:
    """A shorter timeout in IDENTIFY is refused."""
    assert granted(server, output_buffer_timeout=50)["output_buffer_timeout"] == 50
    refuses("output buffer timeout (49)", output_buffer_timeout=49)(server)


def max_deflate_level(server: FlagServer) -> None:
    """A client that requests a higher level gets this one."""
    says(deflate=True, deflate_level=3, max_deflate_level=3)(server)
    assert server.get_json("/info")["max_deflate_level"] == 3


def topology(server: FlagServer) -> None:
    """IDENTIFY and /info return region and zone."""
    says(topology_region="north", topology_zone="pole")(server)
    info = server.get_json("/info")
    assert (info["topology_region"], info["topology_zone"]) == ("north", "pole")


def no_compression(server: FlagServer) -> None:
    """A client that requests compression does not get it."""
    for kind in ("deflate", "snappy"):
        assert granted(server, **{kind: True})[kind] is False


def enable_experiment(server: FlagServer) -> None:
    """Consumers in nsqd's own zone get all messages that their RDY allows."""
    with V2Client(server) as near, V2Client(server) as far:
        for line, zone in ((far, "equator"), (near, "pole")):
            line.ask(identify(topology_region="north", topology_zone=zone))
            assert line.ask(sub("zones", "c")) == OK
            line.send(rdy(10))
            # The answer to a later command confirms that nsqd has processed the RDY.
            assert line.ask(pub("other", b"x")) == OK
        assert far.ask(mpub("zones", [b"%d" % number for number in range(8)])) == OK
        assert len(near.messages(8)) == 8
        assert server.channel("zones", "c")["zone_local_msg_count"] == 8


def requeue_on_disconnect(server: FlagServer) -> None:
    """A message of a lost connection is redelivered immediately, not after the timeout of 60 s."""
    with V2Client(server) as line:
        assert line.ask(pub("dropped", b"x")) == OK
        assert line.ask(sub("dropped", "c")) == OK
        line.send(rdy(1))
        line.messages(1)
    with V2Client(server) as line:
        assert line.ask(sub("dropped", "c")) == OK
        line.send(rdy(1))
        (again,) = line.messages(1)
        assert again.attempts == 2
        line.send(fin_each([again]))


def node_id(server: FlagServer) -> None:
    """Message ids contain this value in their top ten bits."""
    with V2Client(server) as line:
        assert line.ask(pub("ids", b"x")) == OK
        assert line.ask(sub("ids", "c")) == OK
        line.send(rdy(1))
        (found,) = line.messages(1)
        assert int(found.id, 16) >> 54 == 77
        line.send(fin_each([found]))


GROUPS = {
    "limits": [
        *ADDRESSES,
        Row("max-rdy-count", 9, max_rdy_count),
        Row("max-msg-size", 100, max_msg_size),
        Row("max-body-size", 964, max_body_size),
        Row("msg-timeout", "1.3s", msg_timeout),
        Row("max-msg-timeout", "5s", max_msg_timeout),
        Row("max-req-timeout", "3s", max_req_timeout),
        Row("max-heartbeat-interval", "40s", max_heartbeat_interval),
        Row("max-output-buffer-size", 2000, max_output_buffer_size),
        Row("max-output-buffer-timeout", "40s", max_output_buffer_timeout),
        Row("min-output-buffer-timeout", "50ms", min_output_buffer_timeout),
        Row("output-buffer-timeout", "111ms", says(output_buffer_timeout=111)),
        Row("max-deflate-level", 3, max_deflate_level),
        Row("node-id", 77, node_id),
    ],
    "features": [
        Row("topology-region", "north", topology),
        Row("topology-zone", "pole", topology),
        Row("enable-experiment", ["topology-aware-consumption"], enable_experiment),
        Row("deflate", False, no_compression),
        Row("snappy", False, no_compression),
        Row("requeue-on-disconnect", True, requeue_on_disconnect),
        Row("worker-id", True, help_says("worker-id", "accepted and ignored")),
        Row(
            "queue-scan-worker-pool-max",
            9,
            help_says("queue-scan-worker-pool-max", "accepted and ignored"),
        ),
        Row(
            "queue-scan-selection-count",
            9,
            help_says("queue-scan-selection-count", "accepted and ignored"),
        ),
    ],
}
