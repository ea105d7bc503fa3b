"""A V2 client by hand that speaks TLS, deflate and snappy with other means than sparq's own.

Layers of Python's `ssl`, zlib and cramjam over a plain socket, TCP or unix; what is sent and when
is the test's affair. And certificates of each kind.
"""

import asyncio
import contextlib
import datetime
import json
import ssl
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import trustme
from cramjam import snappy
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparq.protocol.commands import identify
from tests.nsqd.daemon import Daemon

SECONDS = 30.0
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


@dataclass
class Certificates:
    """Files of the server's certificate and of clients' ones, and the authority behind them."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Self:
        """All of them in the folder."""
        authority = trustme.CA()
        found = cls(folder, authority)
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        found.issue("server", authority.issue_cert("localhost", "127.0.0.1"))
        found.issue("signed", authority.issue_cert("joe@example.org", common_name="joe"))
        found.issue("foreign", trustme.CA().issue_cert("eve@example.org", common_name="eve"))
        pem = self_signed("nobody", days=(-1, 1))
        (folder / "self-signed.pem").write_bytes(pem)
        (folder / "expired.pem").write_bytes(self_signed("late", days=(-20, -10)))
        return found

    def issue(self, name: str, certificate: trustme.LeafCert) -> None:
        """Write `name.pem` (key and chain), and the two in files of their own."""
        certificate.private_key_and_cert_chain_pem.write_to_path(str(self.folder / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.crt"))

    def options(self, **more: Any) -> dict[str, Any]:
        """nsqd's options of TLS."""
        folder = self.folder
        return {
            "tls_cert": str(folder / "server.crt"),
            "tls_key": str(folder / "server.key"),
            **more,
        }

    def client(self, name: str = "", version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """A client's context, with that certificate, of that version only."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        if name:
            context.load_cert_chain(str(self.folder / f"{name}.pem"))
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context


def self_signed(name: str, *, days: tuple[int, int]) -> bytes:
    """Key and certificate that nobody but itself has signed, valid between these days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem + certificate.public_bytes(serialization.Encoding.PEM)


class Closed(Exception):
    """nsqd has closed the connection."""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.tls: ssl.SSLObject | None = None
        self.was_told_goodbye = False
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._deflater: Any = None
        self._inflater: Any = None
        self._snappy: bytearray | None = None
        self._has_sent_identifier = False
        self._plain = bytearray()

    # Bytes through the layers

    def seal(self, data: bytes) -> bytes:
        """What goes to the socket for these bytes."""
        if self._deflater is not None:
            data = self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        elif self._snappy is not None:
            data = bytes(snappy.compress(data))[10 if self._has_sent_identifier else 0 :]
            self._has_sent_identifier = True
        if self.tls is None:
            return data
        for at in range(0, len(data), 1 << 14):
            self.tls.write(data[at : at + (1 << 14)])
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        """Send through all layers."""
        self.writer.write(self.seal(data))

    async def receive(self) -> None:
        """Take in what arrives next; raises `Closed` at the end."""
        async with asyncio.timeout(SECONDS):
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError as error:
                raise Closed from error
        if not data:
            raise Closed
        if self.tls is not None:
            self._arrived.write(data)
            data = self._read_tls(self.tls)
        self._plain += self._inflate(data)

    def _read_tls(self, tls: ssl.SSLObject) -> bytes:
        pieces = []
        try:
            while piece := tls.read(1 << 16):
                pieces.append(piece)
            self.was_told_goodbye = True
        except ssl.SSLZeroReturnError:
            self.was_told_goodbye = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def _inflate(self, data: bytes) -> bytes:
        if self._inflater is not None:
            return bytes(self._inflater.decompress(data))
        if self._snappy is None:
            return data
        found = b""
        self._snappy += data
        while len(self._snappy) >= 4:
            end = 4 + int.from_bytes(self._snappy[1:4], "little")
            if len(self._snappy) < end:
                break
            found += bytes(snappy.decompress(IDENTIFIER + self._snappy[:end]))
            del self._snappy[:end]
        return found

    # Frames

    async def exactly(self, size: int) -> bytes:
        """So many bytes from the top of the layers."""
        while len(self._plain) < size:
            await self.receive()
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    async def frame(self) -> tuple[int, bytes]:
        """The next frame's type and data."""
        size, kind = struct.unpack(">ii", await self.exactly(8))
        return kind, await self.exactly(size - 4)

    async def response(self) -> bytes:
        """The data of the next frame, which is a response."""
        kind, data = await self.frame()
        assert kind == 0, data
        return data

    async def error(self) -> bytes:
        """The text of the next frame, an error behind which the connection ends."""
        kind, data = await self.frame()
        assert kind == 1, data
        await self.end()
        return data

    async def end(self) -> None:
        """Wait for the end; nothing may come before it."""
        with contextlib.suppress(Closed):
            while True:
                await self.receive()
                assert not self._plain, self._plain

    # Conversations

    async def identify(self, **asked: Any) -> dict[str, Any]:
        """IDENTIFY with feature negotiation; the answer."""
        body = json.dumps({"feature_negotiation": True, **asked}).encode()
        self.send(identify(body))
        found: dict[str, Any] = json.loads(await self.response())
        return found

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        """Begin TLS; nsqd has nothing to say before the client's hello."""
        assert not self._plain
        self.tls = context.wrap_bio(self._arrived, self._outgoing, server_hostname="localhost")
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.writer.write(self._outgoing.read())
                async with asyncio.timeout(SECONDS):
                    data = await self.reader.read(1 << 16)
                if not data:
                    raise Closed from None
                self._arrived.write(data)
                continue
            self.writer.write(self._outgoing.read())
            # With TLS 1.2 nsqd's last word of the handshake and its OK may come together.
            self._plain += self._read_tls(self.tls)
            return

    def deflate(self, level: int = 6) -> None:
        """Speak deflate from here on; what arrived behind the last frame is deflated already."""
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._inflater = zlib.decompressobj(-15)
        self._plain[:] = self._inflate(bytes(self._plain))

    def snappy(self) -> None:
        """Speak snappy from here on, likewise."""
        self._snappy = bytearray()
        self._plain[:] = self._inflate(bytes(self._plain))

    async def upgrade(
        self, context: ssl.SSLContext | None = None, compression: str = "", **asked: Any
    ) -> dict[str, Any]:
        """IDENTIFY, then all layers that were agreed, with the OK behind each."""
        if context is not None:
            asked["tls_v1"] = True
        if compression:
            asked[compression] = True
        reply = await self.identify(**asked)
        if context is not None:
            assert reply["tls_v1"] is True
            await self.shake_hands(context)
            assert await self.response() == b"OK"
        if compression:
            assert reply[compression] is True
            getattr(self, compression)()
            assert await self.response() == b"OK"
        return reply


@contextlib.asynccontextmanager
async def connected(daemon: Daemon) -> AsyncIterator[Client]:
    """A connection that has said its magic bytes."""
    tcp = daemon.listeners.tcp
    if tcp.port > 0:
        reader, writer = await asyncio.open_connection("127.0.0.1", tcp.port)
    else:
        reader, writer = await asyncio.open_unix_connection(tcp.text)
    client = Client(reader, writer)
    writer.write(b"  V2")
    try:
        yield client
    finally:
        writer.transport.abort()
