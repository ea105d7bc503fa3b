"""TLS and compression layers: data is unchanged for any layers, chunking and buffers."""

import ssl
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.protocol.compression import PIECE_BYTES, Compression, Deflate, LayerError, Snappy
from sparq.wire.layers import Layers, Tls
from tests.client.certificates import Certificates, server_context

KINDS = ("tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
COMPRESSIONS: dict[str, Any] = {"snappy": Snappy, "deflate": Deflate}


class Peer:
    """nsqd's side of the same layers, with OpenSSL and the compressions only."""

    def __init__(self, files: Certificates, kind: str) -> None:
        self.client = Layers()
        self.tls: ssl.SSLObject | None = None
        self.compression: Compression | None = None
        self.arrived, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        for name in kind.split("+"):
            if name == "tls":
                self._shake_hands(files)
            else:
                self.client.add(COMPRESSIONS[name](), b"")
                self.compression = COMPRESSIONS[name]()

    def _shake_hands(self, files: Certificates) -> None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(files.authority)
        tls = Tls(trusting, "127.0.0.1")
        self.client.add(tls, b"")
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
        if self.compression is not None:
            data = self.compression.seal([data])
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
        if self.compression is None:
            return data
        self.compression.feed(data)
        opened = b""
        while piece := self.compression.read():
            opened += piece
        return opened


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
    peer = Peer(files, kind)
    whole = b"".join(parts)
    assert peer.open(peer.client.seal(parts)) == whole

    sealed = peer.seal(whole)
    places = [0, *sorted(cut % (len(sealed) + 1) for cut in cuts), len(sealed)]
    received = b""
    for begin, end in pairwise(places):
        peer.client.feed(sealed[begin:end])
        received += read_all(peer.client)
    assert received == whole
    assert not peer.client.ended


def read_all(layers: Layers) -> bytes:
    """All data available, in pieces of at most `PIECE_BYTES`."""
    received = b""
    while piece := layers.read():
        assert len(piece) <= PIECE_BYTES
        received += piece
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
    assert read_all(peer.client) == b""
    assert peer.client.close()


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
