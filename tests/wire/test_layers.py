"""TLS and compression layers: data is unchanged for any layers, chunking and buffers."""

import ssl
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.protocol.compression import PIECE_BYTES, Deflate, Snappy
from sparq.wire.errors import LayerError
from sparq.wire.layers import Layers, Tls
from tests.client.certificates import Certificates, server_context

KINDS = ("tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
COMPRESSIONS: dict[str, Any] = {"snappy": Snappy, "deflate": Deflate}


class Peer:
    """nsqd's side of the same layers, with OpenSSL and the compressions only."""

    def __init__(self, files: Certificates, kind: str) -> None:
        self.client = Layers()
        self.tls: ssl.SSLObject | None = None
        self.arrived, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        for name in kind.split("+"):
            if name == "tls":
                self._shake_hands(files)
            else:
                self.client.compression = COMPRESSIONS[name]()
                self.compression = COMPRESSIONS[name]()

    def _shake_hands(self, files: Certificates) -> None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(files.authority)
        self.client.tls = tls = Tls(trusting, "127.0.0.1")
        self.tls = server_context(files).wrap_bio(self.arrived, self.leaving, server_side=True)
        done = False
        while not (tls.shake_hands() and done):
            self.arrived.write(tls.output())
            try:
                self.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            tls.feed(self.leaving.read())
        self.arrived.write(tls.output())

    def seal(self, data: bytes) -> bytes:
        """Encode as nsqd sends."""
        if self.client.compression is not None:
            data = self.compression.compress([data])
        if self.tls is None:
            return data
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        return self.leaving.read()

    def open(self, data: bytes) -> bytes:
        """Decode as nsqd receives."""
        if self.tls is not None:
            self.arrived.write(data)
            data = b""
            try:
                while piece := self.tls.read(1 << 20):
                    data += piece
            except ssl.SSLWantReadError:
                pass
        if self.client.compression is None:
            return data
        self.compression.feed(data)
        opened = b""
        while piece := self.compression.read():
            opened += piece
        return opened


PIECES_MAX = 2_000
"""Feeding a megabyte byte by byte tests nothing more, and takes a minute."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    parts=st.lists(st.binary(max_size=3000) | st.integers(0, 400_000).map(bytes), max_size=5),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
    room=st.integers(1, 300_000),
)
def test_data_is_unchanged_in_both_directions(
    files: Certificates, kind: str, parts: list[bytes], cuts: list[int], room: int
) -> None:
    """Data is unchanged in both directions, by `read` and by `read_into`, in any pieces."""
    peer = Peer(files, kind)
    whole = b"".join(parts)
    room = max(room, len(whole) // PIECES_MAX)
    assert peer.open(peer.client.seal(parts)) == whole

    for reading in (read_all, lambda layers: read_into_all(layers, room)):
        sealed = peer.seal(whole)
        places = [0, *sorted(cut % (len(sealed) + 1) for cut in cuts), len(sealed)]
        received = b""
        for begin, end in pairwise(places):
            peer.client.feed(sealed[begin:end])
            received += reading(peer.client)
        assert received == whole
    assert not peer.client.ended


def read_all(layers: Layers) -> bytes:
    """All data available, in pieces of at most `PIECE_BYTES`."""
    received = b""
    while piece := layers.read():
        assert len(piece) <= PIECE_BYTES
        received += piece
    return received


def read_into_all(layers: Layers, size: int) -> bytes:
    """The same by `read_into` with a buffer of this size."""
    room = memoryview(bytearray(size))
    received = b""
    while count := layers.read_into(room):
        received += room[:count]
    return received


@pytest.mark.parametrize("kind", KINDS)
def test_damage_raises_layer_error(files: Certificates, kind: str) -> None:
    """Damage raises LayerError and never gives other data.

    With TLS or snappy a bit is flipped; with deflate the block type is invalid.
    """
    peer = Peer(files, kind)
    sealed = bytearray(peer.seal(b"important" * 1000))
    sealed[len(sealed) // 2] ^= 4
    if kind == "deflate":
        sealed = bytearray(b"\x06")  # a block of a nonexistent type
    peer.client.feed(bytes(sealed))

    with pytest.raises(LayerError, match="TLS" if kind.startswith("tls") else kind):
        read_all(peer.client)


def test_close_notify_ends_the_layers(files: Certificates) -> None:
    """After the peer's close_notify `ended` is true, and ours can still be sent."""
    peer = Peer(files, "tls")
    sealed = peer.seal(b"last words")
    assert peer.tls is not None
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    peer.client.feed(sealed + peer.leaving.read())

    assert read_all(peer.client) == b"last words"
    assert peer.client.ended
    assert read_into_all(peer.client, 10) == b""
    assert peer.client.close()


def test_a_final_deflate_block_ends_the_layers() -> None:
    """After a final deflate block `ended` is true."""
    layers = Layers()
    layers.compression = Deflate()
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
