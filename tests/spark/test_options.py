"""Options shared by source and sink (names, addresses, TLS and AUTH), and those of a sink."""

import pytest

from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.spark.options import OptionError, SinkOptions, check_names
from sparq.spark.source_options import SourceOptions
from tests.client.certificates import certificates

NSQD = {"nsqd_tcp_addresses": "127.0.0.1:4150"}
STREAM = {"topic": "clicks", "channel": "archive", **NSQD}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("startingOffset", "unknown option startingOffset: did you mean startingOffsets"),
        ("STARTINGOFFSET", "did you mean startingOffsets"),
        ("lookupd_http_address", "did you mean lookupd_http_addresses"),
        ("nsqd_tcp_adresses", "did you mean nsqd_tcp_addresses"),
        ("maxOffsetPerTrigger", "did you mean maxOffsetsPerTrigger"),
        ("failOnDataloss2", "did you mean failOnDataLoss"),
        ("subscribe", "unknown option subscribe: use topic or topics instead"),
        ("subscribePattern", "use topicsPattern instead"),
        ("endingOffsetsByTimestamp", "use endingTimestamp instead"),
        ("maxBytePerTrigger", "did you mean maxBytesPerTrigger"),
        ("topicPattern", "did you mean topicsPattern"),
        ("kafka.bootstrap.servers", "use nsqd_tcp_addresses or lookupd_http_addresses instead"),
        ("zzz", "unknown option zzz: valid options are topic, nsqd_tcp_addresses, "),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(given, text):
    """An unknown option raises an OptionError that suggests the nearest or equivalent one."""
    with pytest.raises(OptionError, match=text):
        check_names({**STREAM, given: "1"})


def test_options_of_spark_and_of_the_sink_are_accepted():
    """Spark's own options, and those of the sink in a source, are accepted."""
    check_names(
        {
            **STREAM,
            "path": "/x",
            "checkpointLocation": "/y",
            "owner": "root",
            "provider": "nsq",
            "option.topic": "clicks",
            "MAX_MSG_SIZE": "100",
            "failondataloss": "true",
        }
    )


def test_layer_options_are_case_insensitive(tmp_path):
    """TLS, compression and AUTH options have go-nsq's names and defaults, in any case."""
    authority = certificates(tmp_path).authority
    assert PLAIN == SourceOptions.of(STREAM, stream=True).cluster.layers
    given = {
        "TLS_V1": "TRUE",
        "Tls_Root_CA_file": str(authority),
        "TLS_MIN_VERSION": "tls1.3",
        "Deflate": "true",
        "deflate_LEVEL": "3",
        "AUTH_SECRET": "open sesame",
        "Lookupd_Authorization": "false",
    }
    expected = LayerOptions(
        tls_root_ca_file=str(authority),
        tls_min_version="tls1.3",
        deflate=True,
        deflate_level=3,
        auth_secret="open sesame",
        lookupd_authorization=False,
    )

    assert expected == SourceOptions.of(STREAM | given, stream=True).cluster.layers
    assert expected == SinkOptions.of(NSQD | given).cluster.layers
    assert "open sesame" not in repr(SinkOptions.of(NSQD | given))


def test_addresses_may_be_unix_sockets_and_urls():
    """An nsqd may be the path of a unix socket, an nsqlookupd a URL; duplicates are removed."""
    nsqds = {"nsqd_tcp_addresses": "/run/nsqd.sock, [::1]:4150"}
    lookupds = {"lookupd_http_addresses": "https://h:1, h:1, https://h:1", "nsqd_tcp_addresses": ""}

    assert ("/run/nsqd.sock", "[::1]:4150") == SinkOptions.of(nsqds).cluster.nsqd_tcp_addresses
    assert ("https://h:1", "h:1") == SinkOptions.of(lookupds).cluster.lookupd_http_addresses


def test_a_sinks_limits_default_to_nsqds():
    """max_msg_size and max_body_size default to nsqd's limits; they must be whole numbers."""
    assert (1_048_576, 5_242_880) == (
        SinkOptions.of(NSQD).max_msg_size,
        SinkOptions.of(NSQD).max_body_size,
    )
    with pytest.raises(OptionError, match="max_msg_size"):
        SinkOptions.of({"max_msg_size": "1MB", **NSQD})
