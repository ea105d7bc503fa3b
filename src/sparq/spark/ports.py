"""Detects which NSQ port an address is, so that a wrong port is reported instead of waited for.

One request, ``GET /info`` over plain HTTP, distinguishes the four ports. nsqd's HTTP port answers
with its TCP port, nsqlookupd's HTTP port with its version only. Both TCP ports refuse it: nsqd in a
frame with a type, nsqlookupd in one without.
"""

import json
import socket
import struct
import time
from typing import Final, NamedTuple

from sparq.client.arguments import parse_nsqd
from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import WrongPeerError
from sparq.client.range_reader import RangeReader
from sparq.protocol.address import PORT_MAX, Address, lookupd_url, parse_address
from sparq.protocol.errors import RemoteError
from sparq.spark.options import ClusterOptions

NSQD_TCP: Final = "nsqd's TCP port"
NSQD_HTTP: Final = "nsqd's HTTP port"
LOOKUPD_TCP: Final = "nsqlookupd's TCP port"
LOOKUPD_HTTP: Final = "nsqlookupd's HTTP port"

ASK_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 3.0
"""Time limit of `check`: an nsqd that is down at the moment is not a mistake."""

ANSWER_BYTES_MAX: Final = 64 << 10
_REFUSED: Final = b"E_BAD_PROTOCOL"
_FROM_LOOKUPD: Final = struct.pack(">i", len(_REFUSED)) + _REFUSED
_FROM_NSQD: Final = struct.pack(">ii", 4 + len(_REFUSED), 1) + _REFUSED


class Port(NamedTuple):
    """The kind of port at an address.

    Attributes:
        kind: one of the four.
        tcp_port: the TCP port of an nsqd whose HTTP port this is; otherwise 0.
    """

    kind: str
    tcp_port: int = 0


def port_at(place: Address) -> Port | None:
    """Find out which port this is; None if no NSQ daemon answers."""
    # HTTP/1.0: the server closes after its answer, so the end of the stream is the end of the
    # answer.
    question = b"GET /info HTTP/1.0\r\nHost: %b\r\n\r\n" % place.host.encode()
    answer = b""
    try:
        with socket.create_connection(place, ASK_SECONDS) as connection:
            connection.settimeout(ASK_SECONDS)
            connection.sendall(question)
            while len(answer) < ANSWER_BYTES_MAX and (data := connection.recv(ANSWER_BYTES_MAX)):
                answer += data
    except OSError:
        pass  # use what was received before the error
    if answer.startswith(_FROM_NSQD):
        return Port(NSQD_TCP)
    if answer.startswith(_FROM_LOOKUPD):
        return Port(LOOKUPD_TCP)
    return _http_port(answer)


def _http_port(answer: bytes) -> Port | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].split()[:2]
    if len(status) < 2 or not status[0].startswith(b"HTTP/") or status[1] != b"200":
        return None
    try:
        info = json.loads(body)
    # RecursionError: JSON that is nested too deeply.
    except (ValueError, RecursionError):
        return None
    # NSQ before 1.0 wraps its answers in `data`.
    info = info.get("data", info) if isinstance(info, dict) else {}
    if not isinstance(info, dict) or "version" not in info:
        return None
    if type(port := info.get("tcp_port")) is int and 0 <= port <= PORT_MAX:
        return Port(NSQD_HTTP, port)
    return Port(LOOKUPD_HTTP)


def wrong_lookupd(address: str) -> WrongPeerError | None:
    """The error if an nsqlookupd's address is another of NSQ's ports; else None."""
    url = lookupd_url(address)
    # The question is sent in clear: a TLS port would not answer it.
    if not url.startswith("http://"):
        return None
    found = port_at(parse_address(_with_port(url.removeprefix("http://").partition("/")[0])))
    if found is None or found.kind == LOOKUPD_HTTP:
        return None
    hint = ""
    if found.kind == NSQD_HTTP:
        host = parse_address(_with_port(address.rpartition("//")[2].partition("/")[0])).host
        hint = f"; to use this nsqd, set nsqd_tcp_addresses={Address(host, found.tcp_port)}"
    elif found.kind == NSQD_TCP:
        hint = f"; to use this nsqd, set nsqd_tcp_addresses={address}"
    return WrongPeerError(
        f"option lookupd_http_addresses: {address} is {found.kind}, but nsqlookupd's HTTP port is "
        f"needed (4161 by default){hint}"
    )


def wrong_nsqd(address: str) -> WrongPeerError | None:
    """The error if an nsqd's address is another of NSQ's ports; else None."""
    place = parse_nsqd(address)
    found = None if place.is_path else port_at(place)
    if found is None or found.kind == NSQD_TCP:
        return None
    hint = "(4150 by default)"
    if found.kind == NSQD_HTTP:
        hint = f"(use {Address(place.host, found.tcp_port)})"
    elif found.kind == LOOKUPD_HTTP:
        hint += f"; to use this nsqlookupd, set lookupd_http_addresses={address}"
    return WrongPeerError(
        f"option nsqd_tcp_addresses: {address} is {found.kind}, but nsqd's TCP port is needed "
        f"{hint}"
    )


def _with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdigit() else f"{host}:80"


def check(cluster: ClusterOptions, topic: str = "") -> None:
    """Find mistakes in the addresses before a query runs.

    Daemons that do not answer are not reported: the query waits for them.

    Args:
        cluster: the addresses.
        topic: the topic that a source will read; "" for a sink.

    Raises:
        WrongPeerError: an address points to a different kind of port than the option needs.
        NoRangesError: an nsqd does not support range reading.
        RemoteError: an nsqd refuses a sink's secret.
        TlsError, AuthRequiredError: an nsqd does not offer TLS, is not trusted, or requires AUTH.
    """
    give_up_at = time.monotonic() + CHECK_SECONDS
    for address in cluster.lookupd_http_addresses:
        if time.monotonic() < give_up_at and (mistake := wrong_lookupd(address)):
            raise mistake
    for address in cluster.nsqd_tcp_addresses:
        if time.monotonic() >= give_up_at:
            return
        try:
            _connect(address, topic, cluster)
        except OSError:
            continue
        except WrongPeerError as error:
            raise wrong_nsqd(address) or error from None


def _connect(address: str, topic: str, cluster: ClusterOptions) -> None:
    """Connect to an nsqd as the query will."""
    if not topic:
        BlockingConnection(address, user_agent="sparq spark check", layers=cluster.layers).close()
        return
    reader = RangeReader(address, user_agent="sparq spark check", layers=cluster.layers)
    try:
        reader.ends(topic)
    except RemoteError:
        pass  # the topic does not exist yet, or permission is missing: the query reports it
    finally:
        reader.close()
