"""Options: names, defaults, an error for each wrong value, and the user agent sent to nsqd."""

import json

import pytest

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
from sparq.wire.layer_options import PLAIN, LayerOptions
from tests.client.certificates import certificates

NSQD = {"nsqd_tcp_addresses": "127.0.0.1:4150"}
STREAM = {"topic": "clicks", "channel": "archive", **NSQD}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("startingOffset", "unknown option startingOffset: did you mean startingOffsets"),
        ("subscribe", "unknown option subscribe: use topic or topics instead"),
        ("kafka.bootstrap.servers", "use nsqd_tcp_addresses or lookupd_http_addresses instead"),
        ("zzz", "unknown option zzz: valid options are nsqd_tcp_addresses, "),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(given, text):
    """An unknown option raises an OptionError that suggests the nearest or equivalent one."""
    with pytest.raises(OptionError, match=text):
        check_names({**STREAM, given: "1"})


def test_options_of_spark_and_of_the_sink_are_accepted():
    """Spark's own options, and those of the sink in a source, are accepted in any case."""
    names = ("path", "checkpointLocation", "owner", "provider", "option.topic", "MAX_MSG_SIZE")
    check_names({**STREAM, **dict.fromkeys(names, "1"), "failondataloss": "true"})
    assert SourceOptions.of({**STREAM, "endingOffsets": "latest"}, stream=True)


def test_layer_options_are_case_insensitive(tmp_path):
    """TLS, compression and AUTH options have go-nsq's names and defaults, in any case."""
    given = {
        "Tls_Root_CA_file": str(certificates(tmp_path).authority),
        "DEFLATE": "TRUE",
        "deflate_LEVEL": "3",
        "AUTH_SECRET": "open sesame",
    }
    files = {"tls_root_ca_file": given["Tls_Root_CA_file"]}
    expected = LayerOptions(deflate=True, deflate_level=3, auth_secret="open sesame", **files)
    source = SourceOptions.of(STREAM | given | {"TLS_V1": "TRUE"}, stream=True)

    assert PLAIN == SourceOptions.of(STREAM, stream=True).cluster.layers
    assert expected == source.cluster.layers == SinkOptions.of(NSQD | given).cluster.layers
    assert "open sesame" not in repr(SinkOptions.of(NSQD | given))


def test_addresses_may_be_unix_sockets_and_urls():
    """An nsqd may be the path of a unix socket, an nsqlookupd a URL; duplicates are removed."""
    nsqds = {"nsqd_tcp_addresses": "/run/nsqd.sock, [::1]:4150"}
    lookupds = {"lookupd_http_addresses": "https://h:1, h:1, https://h:1", "nsqd_tcp_addresses": ""}

    assert ("/run/nsqd.sock", "[::1]:4150") == SinkOptions.of(nsqds).cluster.nsqd_tcp_addresses
    assert ("https://h:1", "h:1") == SinkOptions.of(lookupds).cluster.lookupd_http_addresses


def test_defaults():
    """A stream starts at its channel's cursor; a batch reads everything and needs no channel.

    The sink's limits are nsqd's; the source fails on data loss.
    """
    stream = SourceOptions.of(STREAM, stream=True)
    batch = SourceOptions.of({"topic": "clicks", **NSQD}, stream=False)
    sink = SinkOptions.of(NSQD)

    assert (TopicSelection(("clicks",)), "archive") == (stream.topics, stream.channel)
    assert (Positions(COMMITTED), -1, ReadLimits(), 0, True) == (
        stream.starting,
        stream.starting_timestamp_ms,
        stream.limits,
        stream.partitions_min,
        stream.fail_on_data_loss,
    )
    assert (60_000, 5_000) == (stream.cluster.timeout_ms, stream.cluster.begin_timeout_ms)
    assert (Positions(EARLIEST), Positions(LATEST)) == (batch.starting, batch.ending)
    assert (1_048_576, 5_242_880) == (sink.max_msg_size, sink.max_body_size)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"endingOffsets": '{"h:1": 5}'}, "option endingOffsets: a stream has no end"),
        ({"topic": ""}, "set one of the options topic, topics and topicsPattern"),
        ({"topic": "a b"}, 'option topic: invalid topic name "a b": use 1-64 characters'),
        ({"channel": ""}, "set the option channel"),
        ({"nsqd_tcp_addresses": ""}, "set one of the options nsqd_tcp_addresses and"),
        ({"lookupd_http_addresses": "h:1"}, "not both"),
        ({"nsqd_tcp_addresses": "h"}, "option nsqd_tcp_addresses: not an address"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger: expected a whole number"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: expected true or false"),
        ({"startingOffsets": "soon"}, "option startingOffsets: expected earliest, latest"),
        ({"endingTimestamp": "5"}, "option endingTimestamp: a stream has no end"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "endingTimestamp: 5 is before start"),
        ({"pushDownPredicate": "true"}, "option pushDownPredicate: .* in batch reads only"),
        ({"topics": "a"}, "options topic and topics exclude each other"),
        ({"topic": "", "topics": "a,b d"}, 'option topics: invalid topic name "b d"'),
        ({"topic": "", "topics": " ,"}, "option topics: expected comma-separated names"),
        ({"topic": "", "topicsPattern": "a("}, r"topicsPattern: 'a\(' is not a valid Python"),
        ({"topic": "", "topicsPattern": "a"}, "topicsPattern: also set lookupd_http_addresses"),
        ({"topic": "a#ephemeral"}, "option topic: a#ephemeral is ephemeral and has no log"),
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
        ({"deflate_level": "10"}, "option deflate_level must be from 1 to 9, not 10"),
        ({"snappy": "true", "deflate": "true"}, "option snappy and deflate cannot be combined"),
        ({"tls_cert": "/no/such"}, "option tls_cert '/no/such': No such file"),
        ({"auth_secret": "a\x00b"}, r"^option auth_secret contains non-printable characters$"),
        *(
            ({"queryName": name}, "option queryName: expected at most")
            for name in ("two\nlines", "x" * (NAME_CHARACTERS_MAX + 1))
        ),
        # With several topics, an address may have a word but no index.
        *(
            ({"topic": "", "topics": "a,b", "startingOffsets": text}, "an index is a position in")
            for text in ('{"h:1": 7}', '{"/run/nsqd.sock": 7}')
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_options_name(changed, text):
    """A wrong value raises an OptionError that names the option."""
    with pytest.raises(OptionError, match=text):
        SourceOptions.of(STREAM | changed, stream=True)


def test_a_wrong_value_of_a_batch_or_a_sink_is_refused():
    """A batch read has no channel, and so no committed offset; limits are whole numbers."""
    with pytest.raises(OptionError, match="startingOffsets: committed is for streams"):
        SourceOptions.of({"topic": "t", "startingOffsets": "committed", **NSQD}, stream=False)
    with pytest.raises(OptionError, match="max_msg_size"):
        SinkOptions.of({"max_msg_size": "1MB", **NSQD})


WAITING = {"minOffsetsPerTrigger": "7"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"maxOffsetsPerTRIGGER": " 7 "}, ReadLimits(messages_max=7, messages_first=7)),
        (WAITING, ReadLimits(messages_min=7, delay_seconds=900)),
        *(
            (WAITING | {"maxTriggerDelay": text}, ReadLimits(messages_min=7, delay_seconds=seconds))
            for text, seconds in (
                ("1500", 1.5),
                ("0s", 0),
                ("10 s", 10),
                ("2MIN", 120),
                ("1h", 3600),
            )
        ),
        *(
            ({"maxBytesPerTrigger": text}, ReadLimits(bytes_max=size))
            for text, size in (("99", 99), ("2k", 2048), ("3MiB", 3 << 20), ("1gb", 1 << 30))
        ),
    ],
)
def test_limits_of_a_batch_are_parsed(given, expected):
    """Counts, sizes and times are parsed as Spark writes them; the delay only with its minimum."""
    assert expected == SourceOptions.of(STREAM | given, stream=True).limits


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

    heard = (command for command in servers[1].heard if isinstance(command, commands.Identify))
    assert {expected} == {json.loads(bytes(command.body))["user_agent"] for command in heard}
