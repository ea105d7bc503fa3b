"""Malformed JSON from any source raises the reader's documented error, and no other exception."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sparq.broker import permissions
from sparq.broker.catalog import Catalog, CatalogError
from sparq.client.errors import WrongPeerError
from sparq.daemon.reload import new_value
from sparq.migration import queues
from sparq.nsqd.lookup_peers import channels_of
from sparq.nsqlookupd.tcp import ClientError, read_producer
from sparq.options.limits import IdentifyLimits
from sparq.protocol import lookup
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import negotiate
from sparq.protocol.instant import Instant
from sparq.testing import MemoryDisk
from sparq.wire import client as handshake

NESTED = b"[" * 100_000
NESTED_OBJECTS = b'{"a":' * 100_000


def on_disk(name: str, data: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/d")
    file = disk.create(f"/d/{name}")
    file.append([data], 0)
    file.close()
    return disk


def identify(data: bytes) -> Any:
    return negotiate(data, IdentifyLimits(), {})


def introduce(data: bytes) -> Any:
    return read_producer(data, "p", "r", Instant(0, 0))[0]


def load_catalog(data: bytes) -> Any:
    return Catalog(on_disk("sparq.json", data), "/d", 1).load()


def survey_go(data: bytes) -> Any:
    return queues.survey(on_disk("nsqd.dat", data), "/d")


def producers(data: bytes) -> Any:
    return lookup.producers(lookup.answer(200, data))


READERS: dict[str, tuple[Callable[[bytes], Any], type[Exception]]] = {
    "IDENTIFY to nsqd": (identify, RemoteError),
    "IDENTIFY to nsqlookupd": (introduce, ClientError),
    "an authd's answer": (permissions.read, permissions.AnswerError),
    "PUT /config": (partial(new_value, "nsqlookupd_tcp_addresses"), ValueError),
    "channels of an nsqlookupd": (partial(channels_of, 200), ValueError),
    "producers of an nsqlookupd": (producers, ValueError),
    "IDENTIFY's answer": (handshake._facts, WrongPeerError),
    "sparq.json": (load_catalog, CatalogError),
    "nsqd.dat": (survey_go, queues.GoDataError),
}


@pytest.mark.parametrize("data", [NESTED, NESTED_OBJECTS], ids=["arrays", "objects"])
@pytest.mark.parametrize("reader", READERS)
def test_deeply_nested_json_is_refused(reader: str, data: bytes) -> None:
    """JSON nested 100,000 levels deep raises the documented error of each reader."""
    read, error = READERS[reader]

    with pytest.raises(error):
        read(data)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 5_000])
def test_huge_numbers_are_refused(number: str) -> None:
    """Huge numbers, NaN and infinity from a peer or a file are refused."""
    facts = f'{{"format": {number}, "node_id": 1, "retired_index": "0"}}'
    producer = f'{{"broadcast_address": "a", "tcp_port": {number}}}'

    with pytest.raises(CatalogError):
        load_catalog(facts.encode())
    with pytest.raises(RemoteError, match="E_BAD_BODY"):
        identify(b'{"heartbeat_interval": %s}' % number.encode())
    with pytest.raises(ClientError):
        introduce(b'{"tcp_port": %s}' % number.encode())
    try:
        producers = json.loads(f"[{producer}]")
    except ValueError:
        return  # more digits than Python parses
    assert [] == lookup.producers({"producers": producers}).found


# Every key of IDENTIFY's body

KEYS: dict[str, Any] = {
    **{"client_id": "c", "hostname": "h", "user_agent": "u/1"},
    **{"heartbeat_interval": 30_000, "output_buffer_size": 16_384, "output_buffer_timeout": 250},
    **{"feature_negotiation": True, "tls_v1": False, "snappy": False, "deflate": False},
    **{"deflate_level": 6, "sample_rate": 0, "msg_timeout": 60_000},
    **{"topology_region": "r", "topology_zone": "z"},
}
TEXTS = ("", "x", "\r\n\x00\x1b[31m", "\ud800", "x" * 60_000)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -2, 99, 100, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400),
    *(0.5, 1e300, float("inf"), float("nan"), [], [1], {}, {"a": 1}, *TEXTS),
)
STRICT = IdentifyLimits(strict_identify=True)


@pytest.mark.parametrize("key", KEYS)
def test_any_value_of_an_identify_key_is_accepted_or_a_bad_body(key: str) -> None:
    """Any value of any IDENTIFY key is accepted or gets E_BAD_BODY; nothing else is raised."""
    for limits, value in itertools.product((IdentifyLimits(), STRICT), VALUES):
        body = json.dumps({**KEYS, key: value}).encode()
        try:
            granted = negotiate(body, limits, {})
        except RemoteError as error:
            assert "E_BAD_BODY" == error.code, (value, error)
        else:
            assert value is None or type(value) is type(KEYS[key])
            granted.reply_data()
