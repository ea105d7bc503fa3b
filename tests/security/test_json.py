"""JSON from whoever it comes: what no sane writer sends is bad JSON, and not an exception."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sparq.broker import permissions
from sparq.broker.catalog import Catalog, CatalogError
from sparq.client import discovery, handshake
from sparq.client.errors import WrongPeerError
from sparq.daemon.http import HttpError
from sparq.log import go_queue
from sparq.nsqd.config import read_addresses
from sparq.nsqd.lookup_peers import channels_of
from sparq.nsqlookupd.tcp import ClientError, read_producer
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import Limits, negotiate
from sparq.protocol.instant import Instant
from sparq.testing import MemoryDisk

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
    return negotiate(data, Limits(), {})


def introduce(data: bytes) -> Any:
    return read_producer(data, "p", "r", Instant(0, 0))


def load_catalog(data: bytes) -> Any:
    return Catalog(on_disk("sparq.json", data), "/d", 1).load()


def survey_go(data: bytes) -> Any:
    return go_queue.survey(on_disk("nsqd.dat", data), "/d")


def lookup(data: bytes) -> Any:
    return discovery.addresses_in(discovery._parsed(data))


READERS: dict[str, tuple[Callable[[bytes], Any], type[Exception]]] = {
    "IDENTIFY to nsqd": (identify, RemoteError),
    "IDENTIFY to nsqlookupd": (introduce, ClientError),
    "an authd's answer": (permissions.read, permissions.AnswerError),
    "PUT /config": (read_addresses, HttpError),
    "channels of an nsqlookupd": (channels_of, ValueError),
    "producers of an nsqlookupd": (lookup, ValueError),
    "IDENTIFY's answer": (handshake._facts, WrongPeerError),
    "sparq.json": (load_catalog, CatalogError),
    "nsqd.dat": (survey_go, go_queue.GoDataError),
}


@pytest.mark.security("N-7")
@pytest.mark.parametrize("data", [NESTED, NESTED_OBJECTS], ids=["arrays", "objects"])
@pytest.mark.parametrize("reader", READERS)
def test_deep_json_is_bad_json(reader: str, data: bytes) -> None:
    """Whoever reads JSON says its own documented error to a depth that no writer has."""
    read, error = READERS[reader]

    with pytest.raises(error):
        read(data)


@pytest.mark.security("N-7")
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 5_000])
def test_numbers_beyond_all_bounds_are_refused(number: str) -> None:
    """No number of a peer or a file becomes an overflow."""
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
        return  # more digits than Python reads
    assert set() == discovery.addresses_in({"producers": producers})
