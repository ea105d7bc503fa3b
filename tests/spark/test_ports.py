"""A wrong port of NSQ is recognised and named in one sentence; tested with real daemons."""

import pytest

from sparq.client.errors import WrongPeerError
from sparq.client.range_reader import NoRangesError
from sparq.protocol.address import parse_address
from sparq.spark import ports
from sparq.spark.options import ClusterOptions, OptionError, SinkOptions
from sparq.spark.sink import NsqWriter, SinkColumns
from sparq.spark.source import NsqStreamReader
from tests.spark.range_server import RangeServer
from tests.spark.test_data_source import FULL, source_of
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory):
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookupd")) as running:
        yield running


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory):
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as running:
        yield running


def test_each_of_the_four_ports_is_recognised(nsqd, lookupd):
    """Each port is recognised; nsqd's HTTP port also tells its TCP port; a free port is None."""
    places = [nsqd.tcp, nsqd.http, lookupd.tcp, lookupd.http, f"127.0.0.1:{free_port()}"]

    assert [
        ports.Port(ports.NSQD_TCP),
        ports.Port(ports.NSQD_HTTP, nsqd.tcp_port),
        ports.Port(ports.LOOKUPD_TCP),
        ports.Port(ports.LOOKUPD_HTTP),
        None,
    ] == [ports.port_at(parse_address(place)) for place in places]


@pytest.mark.parametrize("topic", ["clicks", ""])
def test_a_wrong_port_is_reported_before_the_query_runs(nsqd, lookupd, topic):
    """The error has the option, the address, the port that it is, and the one that is needed."""
    for address, text in (
        (lookupd.tcp, f"{lookupd.tcp} is nsqlookupd's TCP port, but nsqlookupd's HTTP port is"),
        (nsqd.tcp, f"is nsqd's TCP port, .* set nsqd_tcp_addresses={nsqd.tcp}"),
        (nsqd.http, f"is nsqd's HTTP port, .* set nsqd_tcp_addresses={nsqd.tcp}"),
    ):
        with pytest.raises(WrongPeerError, match=f"^option lookupd_http_addresses: .*{text}"):
            ports.check(ClusterOptions((), (address,), 1000), topic)
    for address, text in (
        (lookupd.tcp, "is nsqlookupd's TCP port, but nsqd's TCP port is needed"),
        (lookupd.http, f"HTTP port, .* set lookupd_http_addresses={lookupd.http}"),
        (nsqd.http, rf"is nsqd's HTTP port, .* is needed \(use {nsqd.tcp}\)"),
    ):
        with pytest.raises(WrongPeerError, match=f"^option nsqd_tcp_addresses: .*{text}"):
            ports.check(ClusterOptions((address,), (), 1000), topic)

    ports.check(ClusterOptions((nsqd.tcp,), (), 1000), topic)
    ports.check(ClusterOptions((), (lookupd.http, f"http://{lookupd.http}"), 1000), topic)


def test_the_check_changes_nothing(nsqd):
    """The check creates no topic."""
    ports.check(ClusterOptions((nsqd.tcp,), (), 1000), "clicks")

    assert not nsqd.get_json("/stats?format=json")["topics"]


def test_addresses_that_do_not_answer_pass_the_check():
    """The check accepts addresses that do not answer: the query waits for them."""
    gone = f"127.0.0.1:{free_port()}"

    ports.check(ClusterOptions((gone,), (), 1000), "clicks")
    ports.check(ClusterOptions((), (gone, "https://h.invalid:1"), 1000), "clicks")


def test_an_nsqd_without_range_reading_is_refused_only_as_a_source():
    """Go's nsqd is accepted as a sink; as a source it is refused."""
    with RangeServer(ranges=0) as plain:
        cluster = ClusterOptions((plain.address,), (), 1000)
        ports.check(cluster)
        with pytest.raises(NoRangesError, match=f"nsqd {plain.address} .* cannot read ranges"):
            ports.check(cluster, "clicks")


def test_a_running_query_reports_a_wrong_address_in_the_same_words(nsqd, lookupd):
    """A wrong address that answers only after the check fails the query with the same sentence."""
    wrong = {"nsqd_tcp_addresses": "", "lookupd_http_addresses": lookupd.tcp}
    for options, text in (
        (wrong, f"{lookupd.tcp} is nsqlookupd's TCP port"),
        ({"nsqd_tcp_addresses": nsqd.http}, f"{nsqd.http} is nsqd's HTTP port"),
    ):
        reader = source_of(**options).streamReader(FULL)
        assert isinstance(reader, NsqStreamReader)
        with pytest.raises(WrongPeerError, match=text):
            reader.initialOffset()


def test_addresses_are_checked_in_load_and_before_a_batch_write(lookupd):
    """The addresses are checked in load(), which needs the schema, and before a batch write."""
    wrong = {"nsqd_tcp_addresses": "", "lookupd_http_addresses": lookupd.tcp}
    with pytest.raises(WrongPeerError, match="nsqlookupd's TCP port"):
        source_of(**wrong).schema()
    with pytest.raises(OptionError, match="set one of the options topic"):
        source_of(topic="").schema()
    for overwrite in (False, True):
        with pytest.raises((WrongPeerError, OptionError)):
            source_of(**wrong).writer(FULL, overwrite)
    assert NsqWriter(SinkOptions.of({"topic": "t", **wrong}), SinkColumns(0, None))
