"""The behaviours that NSQ's own tests assert, and the tests here that assert the same.

They cover nsqd, nsqlookupd, the disk queue and parts of the tools. Each name is one upstream test.
A test here that asserts the same behaviour is marked `@pytest.mark.behaviour("TestBasicV2")`, with
several names if it asserts several. Names that occur in more than one upstream file are qualified
by the file's subject. Upstream's benchmarks assert nothing and are not listed. The last group is
what upstream documents but does not test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MARKER = "behaviour"


def _words(text: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(prefix + word for word in text.split())


_TALK = """
    BasicV2 MultipleConsumerV2 ClientTimeout ClientHeartbeat ClientHeartbeatDisableSUB
    ClientHeartbeatDisable MaxHeartbeatIntervalValid MaxHeartbeatIntervalInvalid Pausing
    EmptyCommand SizeLimits DPUB Touch MaxRdyCount FatalError OutputBuffering
    OutputBufferingValidity TLS TLSRequired TLSAuthRequire TLSAuthRequireVerify Deflate Snappy
    TLSDeflate Sampling TLSSnappy ClientMsgTimeout BadFin ReqTimeoutRange
    IOLoopReturnsClientErrWhenSendFails IOLoopReturnsClientErrWhenSendSucceeds
"""

BEHAVIOURS: dict[str, tuple[str, ...]] = {
    "nsqd/protocol_v2": (
        *_words("ChannelTopicNames SameZoneConsumerV2 ClientAuth", "Test"),
        *_words(_TALK, "Test"),
    ),
    "nsqd/protocol_v2_unixsocket": _words(_TALK, "unix.Test"),
    "nsqd/http": _words(
        """
        TestHTTPpub TestHTTPpubEmpty TestHTTPmpub TestHTTPmpubEmpty TestHTTPmpubBinary
        TestHTTPmpubForNonNormalizedBinaryParam TestHTTPpubDefer TestHTTPSRequire
        TestHTTPSRequireVerify TestTLSRequireVerifyExceptHTTP TestHTTPV1TopicChannel
        TestHTTPClientStats TestHTTPgetStatusJSON TestHTTPgetStatusText TestHTTPconfig
        TestHTTPerrors http.TestDeleteTopic http.TestEmptyTopic http.TestEmptyChannel
        http.TestInfo
        """
    ),
    "nsqd/nsqd": _words(
        """
        TestStartup TestEphemeralTopicsAndChannels TestPauseMetadata TestReconfigure TestCluster
        TestSetHealth TestUnixSocketStartup
        """
    ),
    "nsqd/channel, nsqd/topic": _words(
        """
        TestPutMessage TestPutMessage2Chan TestInFlightWorker TestChannelEmpty
        TestChannelEmptyConsumer TestMaxChannelConsumers TestChannelHealth TestGetTopic
        TestGetChannel TestHealth TestDeletes TestDeleteLast TestPause
        """
    ),
    "nsqd/stats, nsqd/in_flight_pqueue": _words(
        """
        TestStats TestClientAttributes TestStatsChannelLocking in_flight.TestPriorityQueue
        in_flight.TestUnsortedInsert in_flight.TestRemove
        """
    ),
    "nsqlookupd": _words(
        """
        TestIOLoopReturnsClientErrWhenSendFails TestIOLoopReturnsClientErrWhenSendSucceeds
        TestBasicLookupd TestChannelUnregister TestTombstoneRecover TestTombstoneUnregister
        TestInactiveNodes TestTombstonedNodes TestPing TestInfo TestCreateTopic TestDeleteTopic
        TestGetChannels TestCreateChannel TestDeleteChannel TestRegistrationDB
        """,
        "nsqlookupd.",
    ),
    "apps, internal": _words(
        """
        nsqd.TestConfigFlagParsing nsqlookupd.TestConfigFlagParsing util.TestUniqRands
        util.TestTypeOfAddr stringy.TestUniq pqueue.TestPriorityQueue pqueue.TestUnsortedInsert
        pqueue.TestRemove lg.TestLogging clusterinfo.TestHostNameAddresses
        clusterinfo.TestIPv4Addresses clusterinfo.TestIPv6Addresses
        """
    ),
    "go-diskqueue": _words(
        """
        TestDiskQueue TestDiskQueueRoll TestDiskQueuePeek TestDiskQueueEmpty
        TestDiskQueueCorruption TestDiskQueueSyncAfterRead TestDiskQueueTorture
        TestDiskQueueResize
        """,
        "diskqueue.",
    ),
    "not covered upstream": _words(
        """
        auth-ttl-expiry backlog-to-first-channel delay-kept-on-disk in-flight-survives-restart
        missing-diskqueue-metadata node-id-bounds statsd-packets body-limits-chunked
        tls-required-403 pipelining-after-identify line-too-long empty-parameters non-digit-rdy
        disagreeing-lookupds unknown-config-keys attempts-beyond-signed
        """,
        "more.",
    ),
}

ALL = tuple(name for names in BEHAVIOURS.values() for name in names)

LEFT_OUT: dict[str, str] = {
    "util.TestUniqRands": "a draw of random queues to scan: there is no scan of queues here",
}
"""Behaviours that no test here asserts, each with the reason."""


def over_tcp_and_unix(*names: str) -> pytest.MarkDecorator:
    """Return the mark for behaviours that NSQ tests over TCP and over a unix socket."""
    return pytest.mark.behaviour(*_over_tcp_and_unix(names))


def _over_tcp_and_unix(names: Iterable[str]) -> list[str]:
    return [prefix + name for name in names for prefix in ("Test", "unix.Test")]


def places(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The tests that are marked with each name, as `nsqd/test_tcp.py::test_name`."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            place = str(path.relative_to(TESTS))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                place += f"::{node.name}"
            for call in ast.walk(node):
                for name in _names_in(call) if isinstance(call, ast.Call) else ():
                    found.setdefault(name, []).append(place)
    return {name: list(dict.fromkeys(tests)) for name, tests in found.items()}


def _names_in(call: ast.Call) -> list[str]:
    """Return the names in a mark; any other call has none."""
    constants = [word.value for word in call.args if isinstance(word, ast.Constant)]
    words = [word for word in constants if isinstance(word, str)]
    match call.func:
        case ast.Attribute(attr=attribute) if attribute == MARKER:
            return words
        case ast.Name(id=name) if name == over_tcp_and_unix.__name__:
            return _over_tcp_and_unix(words)
    return []
