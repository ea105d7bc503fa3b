"""nsqd's side of a connection without a socket: its states, and its layers."""

import json
import ssl
from collections.abc import Iterator
from itertools import product

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.compression import Deflate, LayerError, Snappy
from sparq.protocol.identify import Granted, negotiate
from sparq.wire.server import (
    MAGIC,
    NEXT,
    ConnectionState,
    ServerConnection,
    WrongMagicError,
)
from tests.client.certificates import Certificates, server_context


def granted(**asked: bool) -> Granted:
    """The result of IDENTIFY on an nsqd that offers everything."""
    body = json.dumps({"feature_negotiation": True, **asked}).encode()
    return negotiate(body, IdentifyLimits(), {"tls": True})


def opened() -> ServerConnection:
    """A connection after its magic bytes."""
    server = ServerConnection(IdentifyLimits(), needs_tls=True)
    server.feed(MAGIC)
    return server


def read(server: ServerConnection) -> Iterator[object]:
    """The available commands."""
    while (command := server.parser.next()) is not None:
        yield command


def test_the_magic_bytes_are_recognised_in_any_pieces() -> None:
    """Magic bytes are recognised in any pieces, and the bytes after them are kept.

    The connection is not plain before.
    """
    for cut in range(1, 4):
        server = ServerConnection(IdentifyLimits())
        server.feed(MAGIC[:cut])
        assert not server.is_v2
        assert not server.is_plain
        server.feed(MAGIC[cut:] + b"NOP\n")
        assert server.is_v2
        assert server.is_plain
        assert b"NOP\n" == server.take_held()


def test_another_protocol_is_refused() -> None:
    """Four other bytes raise WrongMagicError."""
    server = ServerConnection(IdentifyLimits())
    with pytest.raises(WrongMagicError):
        server.feed(b"GET / HTTP/1.1\r\n")

    assert not server.is_v2
    server.go(ConnectionState.ENDED)
    assert ConnectionState.ENDED is server.state


@pytest.mark.parametrize(("before", "after"), list(product(ConnectionState, repeat=2)))
def test_a_transition_outside_the_table_is_refused(
    before: ConnectionState, after: ConnectionState
) -> None:
    """Only the states that the table lists may follow a state, and ENDED, which is final."""
    server = ServerConnection(IdentifyLimits())
    server.state = before
    if after in NEXT[before] or after is ConnectionState.ENDED:
        server.go(after)
        assert (after, after is ConnectionState.OPEN) == (server.state, server.is_plain)
    else:
        with pytest.raises(AssertionError):
            server.go(after)


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_bytes_after_identify_are_compressed_data(kind: str) -> None:
    """Bytes after IDENTIFY are compressed data, never commands, once compression is granted.

    They may arrive in the same chunk, or later but before the reply is sent.
    """
    server = opened()
    compression = Snappy() if kind == "snappy" else Deflate()
    sealed = compression.seal([commands.pub("t", b"x")])
    server.parser.needs_tls = False
    server.parser.feed(commands.identify(b"{}") + sealed[:5])
    assert isinstance(next(read(server)), commands.Identify)
    server.note_granted(granted(**{kind: True}))
    assert ConnectionState.UPGRADING is server.state
    server.feed(sealed[5:])
    assert [] == list(read(server))

    assert server.finish_upgrade()
    assert (ConnectionState.OPEN, False, True) == (server.state, server.is_plain, server.has_layers)
    server.parser.feed(server.layers.read())
    assert isinstance(next(read(server)), commands.PublishRun)


def test_tls_comes_below_the_granted_compression(files: Certificates) -> None:
    """TLS comes below the compression that is granted with it.

    After the handshake all commands are allowed.
    """
    server = opened()
    server.note_granted(granted(tls_v1=True, snappy=True))
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(files.authority)
    arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(arrived, leaving, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server.feed(leaving.read())  # it arrives before the reply is sent

    server.start_tls(server_context(files))
    assert ConnectionState.HANDSHAKE is server.state
    assert server.shake_hands() is None
    arrived.write(server.layers.output())
    client.do_handshake()
    server.feed(leaving.read())
    connection = server.shake_hands()
    assert connection is not None
    assert client.version() == connection.version()
    assert not server.parser.needs_tls
    assert server.finish_upgrade()

    client.write(Snappy().seal([commands.pub("t", b"x")]))
    server.feed(leaving.read())
    server.parser.feed(server.layers.read())
    assert isinstance(next(read(server)), commands.PublishRun)


def test_a_failed_handshake_raises_layer_error(files: Certificates) -> None:
    """Bytes that are not TLS raise LayerError, and commands stay refused."""
    server = opened()
    server.note_granted(granted(tls_v1=True))
    server.start_tls(server_context(files))
    server.feed(commands.pub("t", b"x"))
    with pytest.raises(LayerError):
        server.shake_hands()

    assert server.parser.needs_tls


def test_no_upgrade_begins_for_a_client_that_has_ended_its_side() -> None:
    """No upgrade begins after the client has half-closed the connection.

    It still gets its answers.
    """
    server = opened()
    server.go(ConnectionState.HALF_CLOSED)
    server.note_granted(granted(deflate=True))

    assert ConnectionState.HALF_CLOSED is server.state
    assert not server.has_layers
