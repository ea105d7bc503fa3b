"""Discovery: the answers of nsqlookupds, and addresses that are given directly."""

import http.server
import json
import threading

import pytest

from sparq.client.errors import WrongPeerError
from sparq.client.layer_options import LayerOptions
from sparq.client.range_reader import NoRangesError
from sparq.spark import discovery
from sparq.spark.discovery import NsqdDiscovery, check_peers
from sparq.spark.options import ClusterOptions
from sparq.spark.topics import TopicSelection
from tests.client.certificates import certificates, server_context
from tests.spark.range_server import RangeServer
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

    def set_producers(self, *addresses: tuple[str, int]) -> None:
        """Answer with these producers."""
        producers = [{"broadcast_address": host, "tcp_port": port} for host, port in addresses]
        self.body = json.dumps({"channels": [], "producers": producers}).encode()

    def set_nodes(self, **topics: dict[str, bool]) -> None:
        """Answer with these nsqds, port 1, each with its topics and whether they are tombstoned."""
        producers = [
            {
                "broadcast_address": host,
                "tcp_port": 1,
                "topics": list(found),
                "tombstones": list(found.values()),
            }
            for host, found in topics.items()
        ]
        self.body = json.dumps({"producers": producers}).encode()

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
    monkeypatch.setattr(discovery, "INTERVAL_SECONDS", 0)
    monkeypatch.setattr(discovery, "RETRY_SECONDS", 0)


def unused_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_nsqds_given_by_address_need_no_request():
    """nsqds given by address are used without any request."""
    found = NsqdDiscovery(ClusterOptions(("h:1", "h:2"), (), 1), TopicSelection.of_one("clicks"))

    assert found.addresses() == ("h:1", "h:2")


def test_nsqlookupd_is_asked_for_the_topic(lookupd):
    """/lookup gives the producers' TCP addresses, also of IPv6; the topic name is URL-encoded."""
    lookupd.set_producers(("a", 4150), ("::1", 4152))

    assert NsqdDiscovery(
        ClusterOptions((), (lookupd.address,), 1), TopicSelection.of_one("t#ephemeral")
    ).addresses() == (
        "a:4150",
        "[::1]:4152",
    )
    assert lookupd.paths == ["/lookup?topic=t%23ephemeral"]


def test_several_topics_need_one_request(lookupd):
    """Several topics or a pattern need one request to /nodes; tombstoned topics are left out."""
    cluster = ClusterOptions((), (lookupd.address,), 1)
    plain = {"x2": False, "x#ephemeral": False}
    lookupd.set_nodes(a={"x1": False, "y": False, "x2": True}, b=plain)
    for topics, expected in (
        (TopicSelection((), "x.*", several=True), [("a:1", "x1"), ("b:1", "x2")]),
        (TopicSelection(("x2", "y"), several=True), [("a:1", "y"), ("b:1", "x2")]),
    ):
        found = NsqdDiscovery(cluster, topics)
        assert expected == list(found.found())

    assert ["/nodes", "/nodes"] == lookupd.paths


def test_a_forgotten_topic_returns_when_nsqlookupd_lists_it(lookupd):
    """A forgotten topic of an nsqd returns only when nsqlookupd lists it again."""
    found = NsqdDiscovery(
        ClusterOptions((), (lookupd.address,), 1), TopicSelection((), ".*", several=True)
    )
    lookupd.set_nodes(a={"x": False, "y": False})
    first, second = found.found()
    lookupd.set_nodes(a={"y": False})
    found.forget(first)
    assert (second,) == found.found()
    lookupd.set_nodes(a={"x": False})

    assert (second, first) == found.found()


def test_without_nsqlookupd_every_topic_is_at_every_nsqd():
    """Without nsqlookupd, every given topic is expected at every given nsqd."""
    found = NsqdDiscovery(
        ClusterOptions(("h:1", "h:2"), (), 1), TopicSelection(("a", "b"), several=True)
    )

    assert [("h:1", "a"), ("h:1", "b"), ("h:2", "a"), ("h:2", "b")] == list(found.found())
    assert ("h:1", "h:2") == found.addresses()


def test_a_sink_uses_all_nsqds(lookupd):
    """A sink uses all nsqds of /nodes: its topic need not exist yet."""
    NsqdDiscovery(ClusterOptions((), (lookupd.address,), 1), None).addresses()

    assert lookupd.paths == ["/nodes"]


def test_nsqds_that_are_no_longer_listed_are_kept(lookupd):
    """An nsqd that nsqlookupd no longer lists is kept, and new ones are added."""
    found = NsqdDiscovery(
        ClusterOptions((), (lookupd.address,), 1), TopicSelection.of_one("clicks")
    )
    lookupd.set_producers(("a", 1))
    found.addresses()
    lookupd.set_producers(("b", 2))
    found.addresses()
    lookupd.status = 500

    assert found.addresses() == ("a:1", "b:2")


def test_an_unknown_topic_has_no_nsqds(lookupd):
    """404 TOPIC_NOT_FOUND counts as an answer without nsqds: nothing was published yet."""
    lookupd.status, lookupd.body = 404, b'{"message":"TOPIC_NOT_FOUND"}'

    assert (
        NsqdDiscovery(
            ClusterOptions((), (lookupd.address,), 1), TopicSelection.of_one("clicks")
        ).addresses()
        == ()
    )


def test_the_answer_of_one_nsqlookupd_of_two_is_enough(lookupd):
    """If one of two nsqlookupds is down, the answer of the other counts."""
    lookupd.set_producers(("a", 1))
    found = NsqdDiscovery(
        ClusterOptions((), (unused_address(), lookupd.address), 1), TopicSelection.of_one("clicks")
    )

    assert found.addresses() == ("a:1",)


def test_without_an_answer_the_error_lists_each_nsqlookupd(lookupd):
    """Until one nsqlookupd has answered, an OSError lists each address with its failure."""
    lookupd.status, lookupd.body = 500, b"oh"
    gone = unused_address()
    found = NsqdDiscovery(
        ClusterOptions((), (gone, lookupd.address), 1), TopicSelection.of_one("clicks")
    )

    with pytest.raises(OSError, match=f"(?s){gone}.*{lookupd.address}: status 500"):
        found.addresses()
    lookupd.status = 200
    lookupd.set_producers(("a", 1))

    assert found.addresses() == ("a:1",)


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_an_answer_of_another_program_raises_wrong_peer_error(lookupd, body):
    """An answer that is not nsqlookupd's JSON raises WrongPeerError."""
    lookupd.body = body

    with pytest.raises(WrongPeerError, match="is not an nsqlookupd's HTTP port"):
        NsqdDiscovery(
            ClusterOptions((), (lookupd.address,), 1), TopicSelection.of_one("clicks")
        ).addresses()


def test_an_https_nsqlookupd_is_verified_and_gets_the_secret(tmp_path):
    """An https nsqlookupd is verified and gets the secret; the path in its URL is kept."""
    files = certificates(tmp_path)
    layers = LayerOptions(tls_root_ca_file=str(files.authority), auth_secret="open sesame")
    for cert, trusted in ((files.server, True), (files.stranger, False)):
        running = Lookupd(server_context(files, cert))
        running.set_producers(("127.0.0.1", 4150))
        url = f"https://{running.address}/behind/lookup"
        found = NsqdDiscovery(
            ClusterOptions((), (url,), 1000, layers), TopicSelection.of_one("clicks")
        )
        try:
            if trusted:
                assert ("127.0.0.1:4150",) == found.addresses()
                assert ["/behind/lookup?topic=clicks"] == running.paths
                assert ["Bearer open sesame"] == running.secrets
            else:
                with pytest.raises(OSError, match=f"nsqlookupd {url}.*certificate"):
                    found.addresses()
                assert [] == running.paths
        finally:
            running.close()


def test_the_check_of_addresses_creates_nothing_and_ignores_silence(tmp_path):
    """`check_peers` creates no topic, and accepts addresses that do not answer."""
    gone, topics = unused_address(), TopicSelection.of_one("clicks")
    with spawn_nsqd(tmp_path) as nsqd:
        for wanted in (topics, None):
            check_peers(ClusterOptions((nsqd.tcp, gone), (), 1000), wanted)
            check_peers(ClusterOptions((), (gone, "https://h.invalid:1"), 1000), wanted)
            with pytest.raises(WrongPeerError, match=f"nsqd {nsqd.http}: it speaks HTTP"):
                check_peers(ClusterOptions((gone, nsqd.http), (), 1000), wanted)

        assert not nsqd.get_json("/stats?format=json")["topics"]


def test_an_nsqd_without_range_reading_is_refused_only_as_a_source():
    """Go's nsqd is accepted as a sink; as a source it is refused."""
    with RangeServer(ranges=0) as plain:
        cluster = ClusterOptions((plain.address,), (), 1000)
        check_peers(cluster, None)
        with pytest.raises(NoRangesError, match=f"nsqd {plain.address} .* cannot read ranges"):
            check_peers(cluster, TopicSelection.of_one("clicks"))
