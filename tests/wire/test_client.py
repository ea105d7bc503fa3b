"""The client's handshake: the order of upgrades, and everything that must be refused.

Both sides are bytes in, bytes out: no sockets, any chunking.
"""

import json
import ssl
import tracemalloc
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client.errors import AuthRequiredError, TlsError, WrongPeerError
from sparq.protocol.errors import RemoteError
from sparq.wire.client import ClientConnection, Stage
from sparq.wire.layer_options import LayerOptions
from tests.client.certificates import Certificates, server_context
from tests.client.counterpart import Counterpart, frame

HERE = "127.0.0.1:4150"
IDENTITY = {"client_id": "me", "feature_negotiation": True}
ALL = {"tls_v1": True, "snappy": True, "deflate": True, "max_rdy_count": 2500}
SECRET = "open sesame"
SHOWN: dict[str, Any] = {"auth_secret": SECRET, "auth_without_tls": True}
KINDS: dict[tuple[str, ...], dict[str, bool]] = {
    (): {},
    ("tls",): {"tls_v1": True},
    ("snappy",): {"snappy": True},
    ("deflate",): {"deflate": True},
    ("tls", "snappy"): {"tls_v1": True, "snappy": True},
    ("tls", "deflate"): {"tls_v1": True, "deflate": True},
}


def options_of(files: Certificates, **given: Any) -> LayerOptions:
    """Options that trust the tests' authority if they request TLS."""
    if given.get("tls_v1"):
        given = {"tls_root_ca_file": str(files.authority), **given}
    return LayerOptions(**given)


def new_handshake(options: LayerOptions, address: str = HERE) -> ClientConnection:
    """A new handshake."""
    return ClientConnection(address, options, IDENTITY)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """The data in chunks of this size."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


def exchange(client: ClientConnection, server: Counterpart, size: int = 1 << 20) -> None:
    """Exchange bytes between the two until the client has no more output."""
    out = client.output()
    while out:
        answers = b"".join([server.receive(chunk) for chunk in cut(out, size)])
        for chunk in cut(answers, size):
            client.feed(chunk)
        out = client.output()


def plain(client: ClientConnection) -> bytes:
    """The data after the handshake."""
    data = client.receiver.take_rest()
    while piece := client.layers.read():
        data += piece
    return data


@pytest.mark.parametrize("size", [1 << 20, 7, 1])
@pytest.mark.parametrize("auth", [False, True], ids=["open", "auth"])
@pytest.mark.parametrize("layers", KINDS, ids=lambda layers: "+".join(layers) or "plain")
def test_upgrades_come_in_their_order(
    files: Certificates, layers: tuple[str, ...], auth: bool, size: int
) -> None:
    """The order is IDENTIFY unencrypted, TLS, compression, AUTH.

    Data after the handshake in the same bytes is not lost.
    """
    server = Counterpart({**ALL, "auth_required": auth}, server_context(files))
    server.after_handshake = frame(0, b"_heartbeat_") + frame(2, b"m" * 40)
    client = new_handshake(options_of(files, **SHOWN, **KINDS[layers]))
    exchange(client, server, size)

    assert client.stage is Stage.READY
    assert client.facts == server.facts
    assert [line for _, line, _ in server.received] == [b"IDENTIFY"] + [b"AUTH"] * auth
    assert server.received[0][0] == ()
    if auth:
        assert server.received[1] == (layers, b"AUTH", SECRET.encode())
        assert client.authorization == {"identity": "me"}
    assert plain(client) == server.after_handshake
    server.receive(client.layers.seal([b"PU", b"B t\n"]))
    assert server.received[-1] == (layers, b"PUB t", b"")


def test_identify_contains_the_key_of_every_upgrade(files: Certificates) -> None:
    """IDENTIFY contains every upgrade's key, also those not requested."""
    server = Counterpart({})
    exchange(new_handshake(LayerOptions(deflate=True, deflate_level=3)), server)

    asked = json.loads(server.received[0][2])
    wanted = {"tls_v1": False, "snappy": False, "deflate": True, "deflate_level": 3}
    assert asked == {**IDENTITY, **wanted}


def test_the_connection_works_if_compression_is_not_granted(files: Certificates) -> None:
    """If nsqd does not grant compression, the connection works without."""
    for facts in ({}, {"snappy": False}):
        client = new_handshake(LayerOptions(snappy=True))
        exchange(client, Counterpart(facts))
        assert client.stage is Stage.READY
        assert not client.layers


def test_tls_that_is_not_granted_is_an_error(files: Certificates) -> None:
    """If TLS is requested but not granted, TlsError is raised and nothing more is sent."""
    for facts in ({}, {**ALL, "tls_v1": False}, {"auth_required": True}):
        server = Counterpart(facts)
        client = new_handshake(options_of(files, tls_v1=True, snappy=True, auth_secret=SECRET))
        with pytest.raises(TlsError, match="does not offer TLS, which the option tls_v1 requires"):
            exchange(client, server)
        assert client.stage is not Stage.READY
        assert client.output() == b""
        assert len(server.received) == 1


def test_an_unencrypted_frame_after_identify_fails_the_tls_handshake(files: Certificates) -> None:
    """An unencrypted frame injected after IDENTIFY's answer makes the TLS handshake fail.

    It is never read as a frame.
    """
    server = Counterpart(ALL, server_context(files))
    server.after_identify = frame(0, b"OK")
    client = new_handshake(options_of(files, tls_v1=True))

    with pytest.raises(TlsError):
        exchange(client, server)
    assert client.stage is not Stage.READY


@pytest.mark.parametrize(
    ("cert", "address", "text"),
    [
        ("stranger", HERE, "unable to get local issuer certificate"),
        ("self_signed", HERE, "certificate"),
        ("expired", HERE, "certificate has expired"),
        ("elsewhere", HERE, "IP address mismatch"),
        ("server", "nsqd.example:4150", "Hostname mismatch"),
        ("stranger", "/run/nsqd.sock", "unable to get local issuer certificate"),
    ],
)
def test_an_untrusted_certificate_is_refused(
    files: Certificates, cert: str, address: str, text: str
) -> None:
    """An unknown authority, a wrong host or an expired certificate raises TlsError.

    With `tls_insecure_skip_verify` it is accepted.
    """
    context = server_context(files, getattr(files, cert))
    client = new_handshake(options_of(files, tls_v1=True, auth_secret=SECRET), address)
    with pytest.raises(TlsError, match=text) as refused:
        exchange(client, Counterpart({**ALL, "auth_required": True}, context))

    assert "tls_root_ca_file" in str(refused.value)
    assert str(address) in str(refused.value)
    assert client.output(), "the peer gets an alert"

    careless = new_handshake(LayerOptions(tls_insecure_skip_verify=True), address)
    exchange(careless, Counterpart(ALL, context))
    assert careless.stage is Stage.READY


@pytest.mark.parametrize("address", ["[::1]:4150", "localhost:1", "/run/nsqd.sock"])
def test_hosts_named_in_the_certificate_are_accepted(files: Certificates, address: str) -> None:
    """Host names and IP addresses in the certificate are accepted.

    A unix socket has no name to compare.
    """
    client = new_handshake(options_of(files, tls_v1=True), address)
    exchange(client, Counterpart(ALL, server_context(files)))

    assert client.stage is Stage.READY


def test_a_client_without_a_required_certificate_gets_a_tls_error(files: Certificates) -> None:
    """If nsqd requires a client certificate, a client without one gets a TlsError.

    In TLS 1.3 nsqd's alert arrives after the handshake.
    """
    with pytest.raises(TlsError, match=r"certificate required.*tls_cert"):
        exchange(
            new_handshake(options_of(files, tls_v1=True)),
            AlertingServer(ALL, server_context(files, ask_client=True)),
        )

    client = new_handshake(options_of(files, tls_v1=True, tls_cert=str(files.client)))
    exchange(client, Counterpart(ALL, server_context(files, ask_client=True)))
    assert client.stage is Stage.READY


class AlertingServer(Counterpart):
    """A server that sends its TLS alert instead of raising the error."""

    def receive(self, data: bytes) -> bytes:
        """Receive, but suppress TLS errors."""
        try:
            return super().receive(data)
        except ssl.SSLError:
            out, self._out = self._out, b""
            return out


def test_a_deleted_certificate_file_is_named_in_the_error(
    files: Certificates, tmp_path: Path
) -> None:
    """A certificate file deleted after the options were created is named in the error."""
    root = tmp_path / "root.pem"
    root.write_bytes(files.authority.read_bytes())
    options = LayerOptions(tls_root_ca_file=str(root))
    root.unlink()
    with pytest.raises(TlsError, match=r"tls_root_ca_file .*root.pem': No such file"):
        exchange(new_handshake(options), Counterpart(ALL, server_context(files)))


@pytest.mark.parametrize(
    ("version", "refused_by", "accepted_by"),
    [("TLSv1_1", "tls1.2", "tls1.0"), ("TLSv1_2", "tls1.3", "tls1.2")],
)
def test_a_tls_version_below_tls_min_version_is_refused(
    files: Certificates, version: str, refused_by: str, accepted_by: str
) -> None:
    """A TLS version below `tls_min_version` is refused, and the error names the option."""
    context = server_context(files)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with pytest.raises(TlsError, match=r"version.*tls_min_version"):
        exchange(
            new_handshake(options_of(files, tls_v1=True, tls_min_version=refused_by)),
            AlertingServer(ALL, context),
        )

    client = new_handshake(options_of(files, tls_v1=True, tls_min_version=accepted_by))
    exchange(client, Counterpart(ALL, context))
    assert client.stage is Stage.READY


# AUTH


@pytest.mark.parametrize("layers", [{}, {"snappy": True}], ids=["plain", "snappy"])
def test_a_secret_is_not_sent_without_tls(files: Certificates, layers: dict[str, bool]) -> None:
    """Without TLS no secret is sent, except to a unix socket, or with `auth_without_tls`.

    The error names both remedies, also for an nsqd that requires TLS.
    """
    facts = {**ALL, "auth_required": True, "tls_required": True}
    server = Counterpart(facts)
    client = new_handshake(LayerOptions(auth_secret=SECRET, **layers))
    with pytest.raises(AuthRequiredError, match=r"127.0.0.1:4150 .* tls_v1, or auth_without_tls"):
        exchange(client, server)
    assert [b"IDENTIFY"] == [line for _, line, _ in server.received]
    assert b"" == client.output()

    for options, address in (
        (LayerOptions(auth_secret=SECRET, auth_without_tls=True, **layers), HERE),
        (LayerOptions(auth_secret=SECRET, **layers), "/run/nsqd.sock"),
    ):
        server = Counterpart(facts)
        exchange(new_handshake(options, address), server)
        assert (b"AUTH", SECRET.encode()) == server.received[1][1:]


def test_the_error_for_a_missing_secret_names_the_option() -> None:
    """The error for a missing secret names the option and the nsqd."""
    with pytest.raises(AuthRequiredError, match=r"127.0.0.1:4150 .* option auth_secret"):
        exchange(new_handshake(LayerOptions()), Counterpart({"auth_required": True}))


@pytest.mark.parametrize(
    "refusal",
    [
        "E_AUTH_FAILED AUTH failed",
        "E_UNAUTHORIZED AUTH no authorizations found",
        "E_AUTH_DISABLED AUTH disabled",
    ],
)
def test_a_refusal_of_a_secret_is_passed_on(refusal: str) -> None:
    """nsqd's refusal of a secret is passed on, and does not contain the secret."""
    server = Counterpart({"auth_required": True})
    server.on_auth = lambda secret: frame(1, refusal.encode())
    with pytest.raises(RemoteError) as refused:
        exchange(new_handshake(LayerOptions(**SHOWN)), server)

    assert f"{refused.value.code} {refused.value.text}" == refusal
    assert refused.value.fatal
    assert SECRET not in repr(refused.value)


def test_heartbeats_before_the_answer_to_auth_get_nops() -> None:
    """Heartbeats before AUTH's answer get NOPs, and are not taken for the answer."""
    server = Counterpart({"auth_required": True})
    server.before_auth = 2 * frame(0, b"_heartbeat_")
    client = new_handshake(LayerOptions(**SHOWN))
    exchange(client, server)

    assert client.stage is Stage.READY
    assert [line for _, line, _ in server.received] == [b"IDENTIFY", b"AUTH", b"NOP", b"NOP"]


# Peers that are not an nsqd


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (frame(0, b"x" * 70_000), "size 70004"),
        (b"\xff\xff\xff\xff....", "size -1"),
        (frame(2, b"message"), "type 2"),
        (frame(0, b"{nonsense"), "instead of a JSON object"),
        (frame(0, b"[]"), "instead of a JSON object"),
        (frame(0, b'{"snappy":true}') + b"\x01no snappy", "snappy"),
        (frame(0, b'{"snappy":true}') + b"\xff\x06\0\0sNaPpY\x01\x14\0\0" + bytes(20), "snappy"),
    ],
)
def test_a_peer_that_is_not_an_nsqd_raises_wrong_peer_error(answer: bytes, text: str) -> None:
    """A peer that is not an nsqd raises WrongPeerError, which describes its answer."""
    client = new_handshake(LayerOptions(snappy=True))
    with pytest.raises(WrongPeerError, match=text):
        client.feed(answer)
    assert client.stage is not Stage.READY


def test_an_unconfirmed_upgrade_raises_wrong_peer_error() -> None:
    """A frame other than OK after an upgrade raises WrongPeerError."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    sealed = deflater.compress(frame(0, b"{}")) + deflater.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(WrongPeerError, match=r"instead of OK \(deflate\)"):
        new_handshake(LayerOptions(deflate=True)).feed(frame(0, b'{"deflate":true}') + sealed)


def test_a_bomb_in_place_of_an_ok_is_refused() -> None:
    """A compression bomb instead of OK is refused after its first piece.

    It takes less than 4 MiB of memory.
    """
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(b"\x7f" * 8) + b"".join(
        deflater.compress(bytes(1 << 20)) for _ in range(256)
    )
    client = new_handshake(LayerOptions(deflate=True))
    tracemalloc.start()
    try:
        with pytest.raises(WrongPeerError, match="size 2139062143"):
            client.feed(frame(0, b'{"deflate":true}') + bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20
