"""Options: every wrong one is an error that names it, before anything is connected."""

import pytest

from sparq.spark.offsets import COMMITTED, EARLIEST, LATEST, Positions
from sparq.spark.options import OptionError, SinkOptions, SourceOptions

NSQD = {"nsqd_tcp_addresses": "127.0.0.1:4150"}
STREAM = {"topic": "clicks", "channel": "archive", **NSQD}


def test_defaults_of_a_stream():
    """A stream begins where its channel stands, and fails when messages are gone."""
    options = SourceOptions.of(STREAM, stream=True)

    assert ("clicks", "archive") == (options.topic, options.channel)
    assert Positions(COMMITTED) == options.starting
    assert (-1, 0, 0) == (
        options.starting_timestamp_ms,
        options.offsets_per_trigger_max,
        options.partitions_min,
    )
    assert options.fail_on_data_loss
    assert 60_000 == options.cluster.timeout_ms


def test_defaults_of_a_batch():
    """A batch read needs no channel and reads everything there is."""
    options = SourceOptions.of({"topic": "clicks", **NSQD}, stream=False)

    assert (Positions(EARLIEST), Positions(LATEST)) == (options.starting, options.ending)


def test_names_are_known_in_any_case():
    """Spark hands options over in lower case or as they were written."""
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
        options.offsets_per_trigger_max,
        options.partitions_min,
        options.fail_on_data_loss,
        options.starting_timestamp_ms,
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"topic": ""}, "option topic is needed"),
        ({"topic": "a b"}, 'option topic: not a legal topic name: "a b"'),
        ({"channel": ""}, "option channel is needed"),
        ({"channel": "?"}, "option channel: not a legal channel name"),
        ({"nsqd_tcp_addresses": ""}, "one of the options nsqd_tcp_addresses and"),
        ({"lookupd_http_addresses": "h:1"}, "not both"),
        ({"nsqd_tcp_addresses": "h"}, "option nsqd_tcp_addresses: not an address"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger: expected a whole number"),
        ({"maxOffsetsPerTrigger": "-1"}, "option maxOffsetsPerTrigger"),
        ({"minPartitions": "x"}, "option minPartitions"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: expected true or false"),
        ({"startingOffsets": "soon"}, "option startingOffsets: expected earliest, latest"),
        ({"startingTimestamp": "today"}, "option startingTimestamp"),
        ({"nsqdTimeoutMs": "0"}, "option nsqdTimeoutMs"),
    ],
)
def test_what_is_wrong_is_named(changed, text):
    """The error is about the option, in its own words."""
    with pytest.raises(OptionError, match=text):
        SourceOptions.of(STREAM | changed, stream=True)


def test_a_batch_has_no_committed_offset():
    """Only a channel has a place that was committed."""
    with pytest.raises(OptionError, match="startingOffsets: expected earliest, latest or"):
        SourceOptions.of({"topic": "t", "startingOffsets": "committed", **NSQD}, stream=False)


def test_a_sink_has_limits():
    """nsqd's limits may be raised as nsqd's were; the defaults are nsqd's."""
    assert (1_048_576, 5_242_880) == (
        SinkOptions.of(NSQD).max_msg_size,
        SinkOptions.of(NSQD).max_body_size,
    )
    with pytest.raises(OptionError, match="max_msg_size"):
        SinkOptions.of({"max_msg_size": "1MB", **NSQD})
