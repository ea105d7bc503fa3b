"""Nsqds: discovery, the check of addresses, and connections that fail, move or are refused."""

import contextlib
import http.server
import json
import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.client.errors import WrongPeerError
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark import connections
from sparq.spark import options as option_limits
from sparq.spark.connections import NsqdDiscovery, check_peers
from sparq.spark.errors import DataLossError, SupersededError, UnreachableError
from sparq.spark.offsets import TopicSelection
from sparq.spark.options import ClusterOptions
from sparq.wire.layer_options import LayerOptions
from tests.client.certificates import certificates, server_context
from tests.spark.range_server import RangeServer, key
from tests.spark.reading import Follower, indexes, rows_of
from tests.support.servers import free_port, spawn_nsqd


class Lookupd:
    """An nsqlookupd that answers every GET with a status and a body."""

    def __init__(self, tls=None) -> None:
        self.status, self.body, self.paths, self.secrets = 200, b'{"producers":[]}', [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.secrets.append(self.headers["Authorization"])
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, *nsqds: tuple[str, int], **topics: dict[str, bool]) -> None:
        """Answer with these nsqds; `topics` of each has its topics, and if they are tombstoned."""
        producers = [
            {
                "broadcast_address": host,
                "tcp_port": port,
                "topics": [*topics.get(host, ())],
                "tombstones": [*topics.get(host, {}).values()],
            }
            for host, port in [*nsqds, *((host, 1) for host in topics)]
        ]
        self.body = json.dumps({"channels": [], "producers": producers}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def lookupd():
    running = Lookupd()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Set the pause between two requests to nsqlookupd to 0."""
    monkeypatch.setattr(connections, "INTERVAL_SECONDS", 0)
    monkeypatch.setattr(connections, "LOOKUP_RETRY_SECONDS", 0)


def unused_address() -> str:
    return f"127.0.0.1:{free_port()}"


CLICKS = TopicSelection(("clicks",))


def finder(topics: TopicSelection | None, *lookupds: str, **layers) -> NsqdDiscovery:
    return NsqdDiscovery(ClusterOptions((), lookupds, 1000, LayerOptions(**layers)), topics)


def addresses(found: NsqdDiscovery) -> list[str]:
    return [place.address for place in found.found()]


def test_nsqlookupd_is_asked_for_the_topic(lookupd):
    """/lookup gives the producers' TCP addresses, also of IPv6; the topic name is URL-encoded."""
    lookupd.serve(("a", 4150), ("::1", 4152))
    found = finder(TopicSelection(("t#ephemeral",)), lookupd.address)

    assert ["a:4150", "[::1]:4152"] == addresses(found)
    assert ["/lookup?topic=t%23ephemeral"] == lookupd.paths


def test_several_topics_need_one_request(lookupd):
    """Several topics or a pattern need one request to /nodes; tombstoned topics are left out.

    So does a sink, which uses all nsqds: its topic need not exist yet.
    """
    plain = {"x2": False, "x#ephemeral": False}
    lookupd.serve(a={"x1": False, "y": False, "x2": True}, b=plain)
    for topics, expected in (
        (TopicSelection((), "x.*", several=True), [("a:1", "x1"), ("b:1", "x2")]),
        (TopicSelection(("x2", "y"), several=True), [("a:1", "y"), ("b:1", "x2")]),
        (None, [("a:1", ""), ("b:1", "")]),
    ):
        assert expected == list(finder(topics, lookupd.address).found())

    assert ["/nodes"] * 3 == lookupd.paths


def test_a_forgotten_topic_returns_when_nsqlookupd_lists_it(lookupd):
    """A forgotten topic of an nsqd returns only when nsqlookupd lists it again."""
    found = finder(TopicSelection((), ".*", several=True), lookupd.address)
    lookupd.serve(a={"x": False, "y": False})
    first, second = found.found()
    lookupd.serve(a={"y": False})
    found.forget(first)
    assert (second,) == found.found()
    lookupd.serve(a={"x": False})

    assert (second, first) == found.found()


def test_nsqds_that_are_no_longer_listed_are_kept(lookupd):
    """An nsqd that nsqlookupd no longer lists is kept, and new ones are added.

    TOPIC_NOT_FOUND is an answer without nsqds; later, it and a failure change nothing.
    """
    found = finder(CLICKS, lookupd.address)
    ok, lookupd.status, lookupd.body = lookupd.status, 404, b'{"message":"TOPIC_NOT_FOUND"}'
    assert [] == addresses(found)
    lookupd.status = ok
    lookupd.serve(("a", 1))
    assert ["a:1"] == addresses(found)
    lookupd.serve(("b", 2))
    assert ["a:1", "b:2"] == addresses(found)
    for lookupd.status, lookupd.body in ((404, b'{"message":"TOPIC_NOT_FOUND"}'), (500, b"")):
        assert ["a:1", "b:2"] == addresses(found)


def test_the_answer_of_one_nsqlookupd_of_two_is_enough(lookupd):
    """Until one nsqlookupd has answered, an OSError lists each address with its failure."""
    lookupd.status, lookupd.body = 500, b"oh"
    gone = unused_address()
    found = finder(CLICKS, gone, lookupd.address)

    with pytest.raises(OSError, match=f"(?s){gone}.*{lookupd.address}: status 500"):
        found.found()
    lookupd.status = 200
    lookupd.serve(("a", 1))

    assert ["a:1"] == addresses(found)


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_an_answer_of_another_program_raises_wrong_peer_error(lookupd, body):
    """An answer that is not nsqlookupd's JSON raises WrongPeerError."""
    lookupd.body = body

    with pytest.raises(WrongPeerError, match="is not an nsqlookupd's HTTP port"):
        finder(CLICKS, lookupd.address).found()


def test_an_https_nsqlookupd_is_verified_and_gets_the_secret(tmp_path):
    """An https nsqlookupd is verified and gets the secret; the path in its URL is kept."""
    files = certificates(tmp_path)
    for cert, trusted in ((files.server, True), (files.stranger, False)):
        running = Lookupd(server_context(files, cert))
        running.serve(("127.0.0.1", 4150))
        url = f"https://{running.address}/behind/lookup"
        layers = {"tls_root_ca_file": str(files.authority), "auth_secret": "open sesame"}
        found = finder(CLICKS, url, **layers)
        with contextlib.closing(running):
            if trusted:
                assert ["127.0.0.1:4150"] == addresses(found)
                assert ["/behind/lookup?topic=clicks"] == running.paths
                assert ["Bearer open sesame"] == running.secrets
            else:
                with pytest.raises(OSError, match=f"nsqlookupd {url}.*certificate"):
                    found.found()
                assert [] == running.paths


def test_the_check_of_addresses_creates_nothing_and_ignores_silence(tmp_path):
    """`check_peers` creates no topic, and accepts addresses that do not answer."""
    gone, topics = unused_address(), CLICKS
    with spawn_nsqd(tmp_path) as nsqd:
        for wanted in (topics, None):
            check_peers(ClusterOptions((nsqd.tcp, gone), (), 1000), wanted)
            check_peers(ClusterOptions((), (gone, "https://h.invalid:1"), 1000), wanted)
            with pytest.raises(WrongPeerError, match=f"nsqd {nsqd.http}: it speaks HTTP"):
                check_peers(ClusterOptions((gone, nsqd.http), (), 1000), wanted)

        assert not nsqd.get_json("/stats?format=json")["topics"]


pytestmark = pytest.mark.usefixtures("no_long_pauses")

ALL = ReadAllAvailable()


@pytest.mark.parametrize("drained", [False, True])
def test_an_unreachable_address_at_the_first_start_is_reported_soon(
    servers, readers, monkeypatch, drained
):
    """At its first start a query waits only BEGIN_TIMEOUT_MS for an nsqd, not a minute."""
    monkeypatch.setattr(option_limits, "BEGIN_TIMEOUT_MS", 200)
    gone = f"127.0.0.1:{free_port()}"
    given = {"nsqd_tcp_addresses": f"{servers[0].address},{gone}", "nsqdTimeoutMs": ""}
    reader = readers(**given)
    begun = time.monotonic()
    if drained:
        reader.prepareForTriggerAvailableNow()

    with pytest.raises(UnreachableError, match=f"nsqd {gone}: .*refused"):
        reader.initialOffset()
    assert time.monotonic() - begun < 5
    assert 60_000 == reader._options.cluster.timeout_ms


def test_a_newer_query_on_the_channel_ends_the_older(servers, readers):
    """The newest ATTACH has the channel; the older query's next commit raises SupersededError."""
    older, newer = readers(servers[1]), readers(servers[1])
    start = older.initialOffset()
    newer.initialOffset()
    end = older.latestOffset(start, ReadMaxRows(2))

    with pytest.raises(SupersededError, match="started elsewhere, has taken over channel archive"):
        older.latestOffset(end, ALL)
    newer.commit(end)
    assert 2 == servers[1].committed


def test_another_program_at_an_nsqds_address_does_not_end_a_query(servers, readers):
    """Another program at an nsqd's address does not end the query: other logs are read."""
    first, second = servers
    reader = readers()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    second.stop()
    first.add([b"new"])
    with RangeServer(second.port, ranges=0):
        end, deadline = start, time.monotonic() + 30
        while not any("cannot read ranges" in reason for reason in reader._fleet.out_of_reach):
            end = reader.latestOffset(start, ALL)
            assert time.monotonic() < deadline

    assert [b"new"] == [body for _, body in rows_of(reader, start, end)]
    second.start()
    while reader._fleet.out_of_reach:
        reader.latestOffset(end, ALL)
        assert time.monotonic() < deadline


def test_a_topic_created_again_between_two_polls_is_another_log(readers, tmp_path):
    """The log of a topic that was created again joins, once the loss of the old one is reported.

    It is created again before the query asks: nsqd never answers that there is no such topic.
    """
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/mpub?topic=clicks", b"old\nold")
        given = {"nsqd_tcp_addresses": nsqd.tcp, "maxOffsetsPerTrigger": "1"}
        strict = Follower(readers(**given, channel="strict"))
        lenient = Follower(readers(**given, channel="lenient", failOnDataLoss="false"))
        for follower in (strict, lenient):
            follower.read(1)
        nsqd.post("/topic/delete?topic=clicks")
        nsqd.post("/mpub?topic=clicks", b"new\nnew")

        with pytest.raises(DataLossError, match=r"of topic clicks .* no longer exists"):
            strict.step()
        lenient.read(3)
        assert [b"new", b"new", b"old"] == lenient.bodies("clicks")
        assert [True, False] == ["gone" in lenient.offset[log] for log in indexes(lenient.offset)]
        assert not lenient.step()
        assert 0 == nsqd.channel("clicks", "lenient")["depth"]


def test_auth_failed_is_retried_after_a_first_success(servers, readers):
    """Refusals at the start are raised, also that of a channel with consumers.

    Later the nsqd of an E_AUTH_FAILED counts as unreachable and is retried.
    """
    first, second = servers
    failed = RemoteError("E_AUTH_FAILED", "AUTH failed")
    for refusal in (
        RemoteError("E_ATTACH_FAILED", "channel clicks:archive has 2 consumers"),
        failed,
    ):
        first.refuse["Attach"] = refusal
        with pytest.raises(RemoteError, match=refusal.code):
            readers().initialOffset()

    first.refuse.clear()
    reader = readers()
    start = reader.initialOffset()
    for name in ("Attach", "ReadEnds", "CommitRange"):
        first.refuse[name] = failed
    first.add([b"new"])
    second.add([b"new"])
    reader.commit({**start, key(first): {"index": 101, "ordinal": 1}})
    heard = len(first.heard)
    deadline = time.monotonic() + 30
    while not any(isinstance(each, commands.Attach) for each in first.heard[heard:]):
        latest = reader.latestOffset(start, ALL)
        assert {**indexes(start), key(second): second.end} == indexes(latest)
        assert time.monotonic() < deadline
    reader.latestOffset(start, ALL)

    first.refuse.clear()
    while indexes(latest := reader.latestOffset(start, ALL))[key(first)] != first.end:
        assert time.monotonic() < deadline, latest


def test_a_withdrawn_permission_fails_a_running_query(servers, readers):
    """E_UNAUTHORIZED fails a running query."""
    reader = readers()
    start = reader.initialOffset()
    gone = RemoteError("E_UNAUTHORIZED", 'AUTH failed for ATTACH on "clicks" "archive"')
    for name in ("Attach", "ReadEnds"):
        servers[0].refuse[name] = gone

    deadline = time.monotonic() + 30
    with pytest.raises(RemoteError, match="E_UNAUTHORIZED"):
        while time.monotonic() < deadline:
            reader.latestOffset(start, ALL)
