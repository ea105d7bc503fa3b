"""TLS and compression layers: data is unchanged for any layers and chunking."""

import ssl
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.protocol.compression import PIECE_BYTES, Deflate, LayerError, Snappy
from sparq.wire.layers import Layers, Tls
from tests.client.certificates import Certificates, server_context

KINDS = ("tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
COMPRESSIONS: dict[str, Any] = {"snappy": Snappy, "deflate": Deflate}


def both_ends(files: Certificates, kind: str) -> tuple[Layers, Layers]:
    """The client's and the server's layers of a connection, after the TLS handshake."""
    client, server = Layers(), Layers()
    for name in kind.split("+"):
        if name != "tls":
            for end in (client, server):
                end.add(COMPRESSIONS[name](), b"")
            continue
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(files.authority)
        ours, theirs = Tls(trusting, "127.0.0.1"), Tls(server_context(files), is_server=True)
        while not (ours.shake_hands() and theirs.shake_hands()):
            theirs.feed(ours.output())
            theirs.shake_hands()
            ours.feed(theirs.output())
        ours.feed(theirs.output())
        client.add(ours, b"")
        server.add(theirs, b"")
    return client, server


def read_all(layers: Layers) -> bytes:
    """All data available, in pieces of at most `PIECE_BYTES`."""
    received = b""
    while piece := layers.read():
        assert len(piece) <= PIECE_BYTES
        received += piece
    return received


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    parts=st.lists(st.binary(max_size=3000) | st.integers(0, 400_000).map(bytes), max_size=5),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
)
def test_data_is_unchanged_in_both_directions(
    files: Certificates, kind: str, parts: list[bytes], cuts: list[int]
) -> None:
    """Data is unchanged in both directions, in any pieces."""
    client, server = both_ends(files, kind)
    for sender, receiver in ((client, server), (server, client)):
        sealed = sender.seal(parts)
        places = [0, *sorted(cut % (len(sealed) + 1) for cut in cuts), len(sealed)]
        received = b""
        for begin, end in pairwise(places):
            receiver.feed(sealed[begin:end])
            received += read_all(receiver)
        assert received == b"".join(parts)
        assert not receiver.ended


@pytest.mark.parametrize("kind", KINDS)
def test_damage_raises_layer_error(files: Certificates, kind: str) -> None:
    """Damage raises LayerError and never gives other data.

    With TLS or snappy a bit is flipped; with deflate the block type is invalid.
    """
    client, server = both_ends(files, kind)
    sealed = bytearray(server.seal([b"important" * 1000]))
    sealed[len(sealed) // 2] ^= 4
    if kind == "deflate":
        sealed = bytearray(b"\x06")  # a block of a nonexistent type
    client.feed(bytes(sealed))

    with pytest.raises(LayerError, match="TLS" if kind.startswith("tls") else kind):
        read_all(client)


def test_close_notify_ends_the_layers(files: Certificates) -> None:
    """After the peer's close_notify `ended` is true, and ours can still be sent."""
    client, server = both_ends(files, "tls")
    client.feed(server.seal([b"last words"]) + server.close())

    assert read_all(client) == b"last words"
    assert client.ended
    assert read_all(client) == b""
    assert client.close()


def test_a_final_deflate_block_ends_the_layers() -> None:
    """After a final deflate block `ended` is true."""
    layers = Layers()
    layers.add(Deflate(), b"")
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    layers.feed(deflater.compress(b"last words") + deflater.flush())

    assert read_all(layers) == b"last words"
    assert layers.ended


def test_without_layers_data_is_passed_through() -> None:
    """Without layers data is passed through, and there is no output."""
    layers = Layers()

    assert not layers
    assert not layers.ended
    assert layers.seal([b"a", b"b"]) == b"ab"
    assert (layers.read(), layers.output(), layers.close()) == (b"", b"", b"")
