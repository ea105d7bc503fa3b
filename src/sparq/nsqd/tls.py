"""nsqd's certificates, and its requirements for clients' certificates.

1. `build` refuses invalid TLS options with NSQ's error texts (docs/daemons.md), before nsqd
   listens.
2. `Certificates.load` replaces certificates in a running nsqd: new handshakes use the new ones. If
   a file cannot be loaded, nothing changes.
3. The policy `require` accepts any certificate, even an unsigned one. As in NSQ, its common name
   goes to authd, which cannot tell it from one that `require-verify` has verified.
"""

from __future__ import annotations

import re
import ssl
import warnings
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.session import TlsFacts
from sparq.nsqd.options import REQUIRE, REQUIRE_VERIFY
from sparq.program.lifecycle import StartError
from sparq.wire.layers import TLS_VERSIONS

if TYPE_CHECKING:
    from sparq.nsqd.options import NsqdOptions

_SHOWN_VERSIONS: Final = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1"}

OLD_CIPHERS: Final = "DEFAULT:@SECLEVEL=0"
"""Ciphers for TLS 1.0 and 1.1: OpenSSL 3 offers none of them at its default security level."""

WEAK_KEYS: Final = "@SECLEVEL=1"
"""Accept RSA keys of 1,024 bits, as Go does, but no SHA-1; Python's own level needs 2,048 bits."""

NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which the module `ssl` has no name."""

CALLBACK: Final = "_msg_callback"
"""Attribute of a context; `ssl` calls its value with each message of a handshake."""

_CERTIFICATE: Final = 11
"""Type number of the handshake message Certificate (RFC 8446 B.3, RFC 5246 A.4)."""

_AES: Final = re.compile(r"AES(128|256)-(?:(GCM|CCM)-?)?(SHA\d*)")
_KEY_EXCHANGE: Final = re.compile(r"((?:ECDHE|DHE|EDH)-(?:RSA|ECDSA|DSS))-")


class Certificates:
    """The certificates in force.

    Attributes:
        context: the TLS context for new V2 connections.
        listening_context: for a server that keeps one context for its whole life (HTTPS); each
            handshake switches to `context`.
    """

    def __init__(self, options: NsqdOptions) -> None:
        """Raises StartError: the files cannot be used."""
        self.context = server_context(options)
        self.listening_context = server_context(options)
        # OpenSSL calls it in each handshake, also without a server name.
        self.listening_context.sni_callback = self._take_newest

    def load(self, options: NsqdOptions) -> None:
        """Read the certificate files again, for new handshakes.

        Raises:
            StartError: the files cannot be used; the old certificates stay in use.
        """
        self.context = server_context(options)

    def _take_newest(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.context


def build(options: NsqdOptions) -> Certificates | None:
    """Load the certificates that the flags name; None if they name none.

    Raises:
        StartError: `failed to build TLS config - ...`
    """
    return Certificates(options) if options.tls.cert or options.tls.key else None


def server_context(options: NsqdOptions) -> ssl.SSLContext:
    """Make a context with the certificate, root CA and client policy of the options.

    Raises:
        StartError: `failed to build TLS config - ...`
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A resumed session would go on with a certificate that has been replaced.
    context.num_tickets = 0
    try:
        _set_versions(context, options.tls.min_version)
        _check_readable(options.tls.cert, options.tls.key)
        _check_unencrypted(options.tls.key)
        # With a password, an encrypted key is refused; without, OpenSSL would ask on the terminal.
        context.load_cert_chain(options.tls.cert, options.tls.key, password="")
        if options.tls.root_ca_file:
            _check_readable(options.tls.root_ca_file)
            context.load_verify_locations(options.tls.root_ca_file)
    except (OSError, ValueError) as error:
        raise StartError(f"failed to build TLS config - {error}") from error
    if options.tls.client_auth_policy == REQUIRE_VERIFY:
        context.verify_mode = ssl.CERT_REQUIRED
    elif options.tls.client_auth_policy == REQUIRE:
        _require_any_certificate(context)
    return context


def _set_versions(context: ssl.SSLContext, oldest: str) -> None:
    with warnings.catch_warnings():
        # Python warns about TLS 1.0 and 1.1; the operator chose them with the flag.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = TLS_VERSIONS[oldest]
    if TLS_VERSIONS[oldest] < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers(OLD_CIPHERS)
    else:
        accept_weak_keys(context)


def accept_weak_keys(context: ssl.SSLContext) -> None:
    """Accept 1,024-bit RSA keys in certificates; see `WEAK_KEYS`."""
    context.set_ciphers(":".join([*(c["name"] for c in context.get_ciphers()), WEAK_KEYS]))


def _check_readable(*paths: str) -> None:
    """Raise ValueError for a file that cannot be opened: the module `ssl` does not say which."""
    for path in paths:
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise ValueError(f"open {path}: {reason}") from error


def _check_unencrypted(path: str) -> None:
    """Raise ValueError for an encrypted key: the module `ssl` does not say so."""
    with open(path, "rb") as file:
        if b"ENCRYPTED" in file.read():
            raise ValueError(f"the key {path} is encrypted: remove its passphrase")


def _require_any_certificate(context: ssl.SSLContext) -> None:
    """Request a client certificate and accept any.

    OpenSSL verifies the client's certificate, and Python can influence that only through the
    trusted roots. So each certificate becomes a trusted root as it arrives, before OpenSSL checks
    it, in a context for this one handshake: by then the server's own certificate has been sent.

    Raises:
        StartError: this Python's `ssl` does not call `_msg_callback`.
    """
    if not hasattr(ssl.SSLContext, CALLBACK):
        raise StartError(
            f"failed to build TLS config - this Python's ssl module has no {CALLBACK}, which"
            f" --tls-client-auth-policy={REQUIRE} needs: use {REQUIRE_VERIFY}"
        )
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(NO_CHECK_TIME)
    # RSA key exchange is excluded: it needs the server's key after the client's certificate.
    context.set_ciphers(":".join([*(c["name"] for c in context.get_ciphers()), "!kRSA"]))
    # There is no public API for this; a test runs with each supported Python.
    setattr(context, CALLBACK, _trust_what_arrives)


def _trust_what_arrives(
    connection: Any, direction: str, _version: int, _content: int, message: int, data: bytes
) -> None:
    if direction == "read" and message == _CERTIFICATE:
        certificate = first_certificate(data)
        if certificate:
            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            accept_weak_keys(trusting)
            trusting.load_verify_locations(cadata=certificate)
            # Otherwise `ssl` would not show the certificate, whose name goes to authd.
            trusting.verify_mode = ssl.CERT_REQUIRED
            connection.context = trusting


def first_certificate(message: bytes) -> bytes:
    """Return the first certificate (DER) in a TLS Certificate message; empty if it has none.

    TLS 1.2: type, u24 size, u24 list size, then for each certificate its u24 size and data. TLS 1.3
    has a u8 size and a context of that many bytes before the list.
    """
    at = 4
    if len(message) < 7 or int.from_bytes(message[at : at + 3]) != len(message) - 7:
        at += 1 + int.from_bytes(message[at : at + 1])
    at += 3
    size = int.from_bytes(message[at : at + 3])
    return bytes(message[at + 3 : at + 3 + size])


def facts_of(connection: ssl.SSLObject) -> TlsFacts:
    """Return the results of a finished handshake, with Go's names."""
    name, _, _ = connection.cipher() or ("", "", 0)
    version = connection.version() or ""
    return TlsFacts(
        cipher_suite=standard_name(name),
        version=_SHOWN_VERSIONS.get(version, version.replace("v", "")),
        negotiated_protocol=connection.selected_alpn_protocol() or "",
        # Go has reported true for every connection since 1.16.
        negotiated_protocol_is_mutual=True,
        common_name=_common_name(connection),
    )


def _common_name(connection: ssl.SSLObject) -> str:
    """Return the common name of a client certificate, also of an unverified one; "" without."""
    certificate: Any = connection.getpeercert() or {}
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    return next((str(value) for key, value in names if key == "commonName"), "")


def standard_name(openssl_name: str) -> str:
    """Translate OpenSSL's name of a cipher suite into the RFC's name."""
    if openssl_name.startswith("TLS_"):
        return openssl_name
    exchange = _KEY_EXCHANGE.match(openssl_name)
    kind = exchange[1].replace("-", "_").replace("EDH", "DHE") if exchange else "RSA"
    cipher = openssl_name[exchange.end() :] if exchange else openssl_name
    if aes := _AES.fullmatch(cipher):
        cipher = f"AES_{aes[1]}_{aes[2] or 'CBC'}_{aes[3]}"
    elif cipher == "CHACHA20-POLY1305":
        cipher = "CHACHA20_POLY1305_SHA256"
    else:
        cipher = cipher.replace("-", "_")
    return f"TLS_{kind}_WITH_{cipher}"
