"""Options: names, defaults, an error for each wrong value, and the user agent sent to nsqd."""

import json

import pytest

from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.protocol import commands
from sparq.spark.offsets import COMMITTED, EARLIEST, LATEST, Positions, TopicSelection
from sparq.spark.options import (
    NAME_CHARACTERS_MAX,
    OptionError,
    ReadLimits,
    SinkOptions,
    SourceOptions,
    check_names,
)
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
        ("zzz", "unknown option zzz: valid options are nsqd_tcp_addresses, "),
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


def test_defaults_of_a_stream():
    """A stream starts at its channel's cursor and fails on data loss."""
    options = SourceOptions.of(STREAM, stream=True)

    assert (TopicSelection(("clicks",)), "archive") == (options.topics, options.channel)
    assert Positions(COMMITTED) == options.starting
    assert (-1, ReadLimits(), 0) == (
        options.starting_timestamp_ms,
        options.limits,
        options.partitions_min,
    )
    assert options.fail_on_data_loss
    assert (60_000, 5_000) == (options.cluster.timeout_ms, options.cluster.begin_timeout_ms)


def test_defaults_of_a_batch():
    """A batch read needs no channel and reads from earliest to latest."""
    options = SourceOptions.of({"topic": "clicks", **NSQD}, stream=False)

    assert (Positions(EARLIEST), Positions(LATEST)) == (options.starting, options.ending)


def test_option_names_are_case_insensitive():
    """Option names are case-insensitive: Spark may pass them in lower case."""
    given = {
        "TOPIC": "clicks",
        "Channel": "c",
        "LOOKUPD_HTTP_ADDRESSES": "[::1]:4161, h:1, h:1",
        "maxoffsetspertrigger": "5",
        "MINPARTITIONS": " 3 ",
        "failondataloss": "FALSE",
        "startingtimestamp": "1763687000000",
    }
    options = SourceOptions.of(given, stream=True)

    assert ("[::1]:4161", "h:1") == options.cluster.lookupd_http_addresses
    assert (5, 3, False, 1763687000000) == (
        options.limits.messages_max,
        options.partitions_min,
        options.fail_on_data_loss,
        options.starting_timestamp_ms,
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"endingOffsets": "latest"}, ""),
        ({"endingOffsets": '{"h:1": 5}'}, "option endingOffsets: a stream has no end"),
        ({"topic": ""}, "set one of the options topic, topics and topicsPattern"),
        ({"topic": "a b"}, 'option topic: invalid topic name "a b": use 1-64 characters'),
        ({"channel": ""}, "set the option channel"),
        ({"channel": "?"}, "option channel: invalid channel name"),
        ({"nsqd_tcp_addresses": ""}, "set one of the options nsqd_tcp_addresses and"),
        ({"lookupd_http_addresses": "h:1"}, "not both"),
        ({"nsqd_tcp_addresses": "h"}, "option nsqd_tcp_addresses: not an address"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger: expected a whole number"),
        ({"maxOffsetsPerTrigger": "-1"}, "option maxOffsetsPerTrigger"),
        ({"minPartitions": "x"}, "option minPartitions"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: expected true or false"),
        ({"startingOffsets": "soon"}, "option startingOffsets: expected earliest, latest"),
        ({"startingTimestamp": "today"}, "option startingTimestamp"),
        ({"nsqdTimeoutMs": "0"}, "option nsqdTimeoutMs"),
        ({"endingTimestamp": "5"}, "option endingTimestamp: a stream has no end"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "endingTimestamp: 5 is before start"),
        ({"endingTimestamp": "-1"}, "option endingTimestamp: expected a whole number"),
        ({"pushDownPredicate": "true"}, "option pushDownPredicate: .* in batch reads only"),
        ({"pushDownPredicate": "1"}, "option pushDownPredicate: expected true or false"),
        ({"topics": "a"}, "options topic and topics exclude each other"),
        ({"topicsPattern": "a.*"}, "options topic and topicsPattern exclude each other"),
        ({"topic": "", "topics": "a,b d"}, 'option topics: invalid topic name "b d"'),
        ({"topic": "", "topics": " ,"}, "option topics: expected comma-separated names"),
        ({"topic": "", "topicsPattern": "a("}, r"topicsPattern: 'a\(' is not a valid Python"),
        ({"topic": "", "topicsPattern": "a"}, "topicsPattern: also set lookupd_http_addresses"),
        ({"topic": "a#ephemeral"}, "option topic: a#ephemeral is ephemeral and has no log"),
        ({"topic": "", "topics": "b,a#ephemeral"}, "option topics: a#ephemeral is ephemeral"),
        ({"minOffsetsPerTrigger": "0"}, "option minOffsetsPerTrigger: expected a whole number"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "option minOffsetsPerTrigger: 9 is more than maxOffsetsPerTrigger, 8",
        ),
        (
            {"firstOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "option firstOffsetsPerTrigger: 9 is more than maxOffsetsPerTrigger, 8",
        ),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay: also set minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 weeks"},
            "option maxTriggerDelay: expected a time like 500ms, 30s, 15m or 2h, not '5 weeks'",
        ),
        ({"maxBytesPerTrigger": "lots"}, "option maxBytesPerTrigger: expected a size like"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger: expected a size like"),
        ({"startingOffsets": '{"a": 5}'}, "option startingOffsets: expected earliest, latest"),
        ({"tls_v1": "yes"}, "option tls_v1: expected true or false"),
        ({"deflate_level": "10"}, "option deflate_level must be from 1 to 9, not 10"),
        ({"snappy": "true", "deflate": "true"}, "option snappy and deflate cannot be combined"),
        ({"tls_cert": "/no/such"}, "option tls_cert '/no/such': No such file"),
        ({"auth_secret": "a\x00b"}, r"^option auth_secret contains non-printable characters$"),
        ({"nsqd_tcp_addresses": "", "lookupd_http_addresses": "ftp://h"}, "or an HTTP URL"),
    ],
)
def test_a_wrong_value_is_refused_with_the_options_name(changed, text):
    """A wrong value raises an OptionError that names the option."""
    if not text:
        assert SourceOptions.of(STREAM | changed, stream=True)
        return
    with pytest.raises(OptionError, match=text):
        SourceOptions.of(STREAM | changed, stream=True)


def test_limits_of_a_batch_are_parsed():
    """Counts, sizes and times are parsed as Spark writes them; the delay only with its minimum."""
    for given, expected in (
        ({"maxOffsetsPerTrigger": "7"}, ReadLimits(messages_max=7)),
        ({"minOffsetsPerTrigger": "7"}, ReadLimits(messages_min=7, delay_seconds=900)),
        (
            {"minOffsetsPerTrigger": "7", "maxTriggerDelay": "1500"},
            ReadLimits(messages_min=7, delay_seconds=1.5),
        ),
        ({"minOffsetsPerTrigger": "7", "maxTriggerDelay": "0s"}, ReadLimits(messages_min=7)),
        *(
            (
                {"minOffsetsPerTrigger": "7", "maxTriggerDelay": text},
                ReadLimits(messages_min=7, delay_seconds=seconds),
            )
            for text, seconds in (("10 s", 10), ("2m", 120), ("2MIN", 120), ("1h", 3600))
        ),
        *(
            ({"maxBytesPerTrigger": text}, ReadLimits(bytes_max=size))
            for text, size in (("99", 99), ("2k", 2048), ("3MiB", 3 << 20), ("1gb", 1 << 30))
        ),
    ):
        assert expected == SourceOptions.of(STREAM | given, stream=True).limits


def test_topics_are_given_in_one_of_three_ways():
    """Topics are given by `topic`, by `topics` with commas, or by `topicsPattern`."""
    several = {"topic": "", "topics": " a , b,a,"}
    lookupd = {"topic": "", "nsqd_tcp_addresses": "", "lookupd_http_addresses": "h:1"}

    assert TopicSelection(("clicks",)) == SourceOptions.of(STREAM, stream=True).topics
    assert (
        TopicSelection(("a", "b"), several=True)
        == SourceOptions.of(STREAM | several, stream=True).topics
    )
    found = SourceOptions.of(STREAM | lookupd | {"topicsPattern": "clicks_.*"}, stream=True)
    assert TopicSelection((), "clicks_.*", several=True) == found.topics


def test_only_a_batch_read_ends_and_pushes_down():
    """endingTimestamp and pushDownPredicate are options of a batch read."""
    given = {"topic": "t", "endingTimestamp": "5", "startingTimestamp": "5", **NSQD}
    assert 5 == SourceOptions.of(given, stream=False).ending_timestamp_ms
    assert not SourceOptions.of(given, stream=False).pushes_predicates
    pushing = SourceOptions.of({**given, "pushDownPredicate": "true"}, stream=False)
    assert pushing.pushes_predicates


def test_with_several_topics_an_address_has_no_index():
    """With several topics, an address may have a word but no index; full keys may have both."""
    several = {**STREAM, "topic": "", "topics": "a,b"}
    for text in ('{"h:1": 7}', '{"/run/nsqd.sock": 7}'):
        with pytest.raises(OptionError, match="startingOffsets: an index is a position in one"):
            SourceOptions.of({**several, "startingOffsets": text}, stream=True)
    key = f'"h:1/a:{"ab" * 16}": {{"index": 7, "ordinal": 5}}'
    for text in ('{"h:1": "latest"}', '{"a": {"h:1": 7}, "b": "latest"}', f"{{{key}}}"):
        assert SourceOptions.of({**several, "startingOffsets": text}, stream=True).starting.named


def test_a_batch_has_no_committed_offset():
    """startingOffsets=committed is refused for a batch read: it has no channel."""
    with pytest.raises(OptionError, match="startingOffsets: committed is for streams"):
        SourceOptions.of({"topic": "t", "startingOffsets": "committed", **NSQD}, stream=False)


def user_agents(server) -> list[str]:
    """The user agents that an nsqd has received in IDENTIFY."""
    heard = (command for command in server.heard if isinstance(command, commands.Identify))
    return [json.loads(bytes(command.body))["user_agent"] for command in heard]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queryName": "clicks by hour"}, "clicks by hour (sparq spark source)"),
        ({}, "sparq spark source"),
    ],
)
def test_the_query_name_is_part_of_the_user_agent(servers, readers, options, expected):
    """The option queryName is part of the user agent in IDENTIFY."""
    readers(servers[1], **options).initialOffset()
    assert {*user_agents(servers[1])} == {expected}


@pytest.mark.parametrize("name", ["two\nlines", "x" * (NAME_CHARACTERS_MAX + 1)])
def test_a_long_or_multiline_query_name_is_refused(readers, name):
    """A queryName with a line break or above NAME_CHARACTERS_MAX characters is refused."""
    with pytest.raises(OptionError, match="option queryName: expected at most"):
        readers(queryName=name)
