"""Options of the layers between a socket and its frames: TLS, compression and AUTH.

1. Names and defaults are go-nsq's. Setting one of the certificate files, or
   ``tls_insecure_skip_verify``, turns TLS on: a client configured with a certificate authority
   must not fall back to plain text.
2. The peer is verified: its certificate chain and its host name. A unix socket has no host name,
   so only the chain is verified there.
3. Errors are raised when the options are made. They name the option, but never show the value of
   the secret.
4. Changed files are read again: the next connection uses a renewed certificate.
"""

from __future__ import annotations

import os
import ssl
import warnings
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

from sparq.options.declare import described, option
from sparq.wire.errors import tls_reason
from sparq.wire.layers import TLS_VERSIONS

OLD_CIPHERS: Final = "DEFAULT@SECLEVEL=0"
"""TLS before 1.2 signs with SHA-1, which OpenSSL refuses at its default security level."""

DENIED: Final = (401, 403)
"""HTTP statuses that ask for a secret, or for another one."""

_FILES: Final = ("tls_root_ca_file", "tls_cert", "tls_key")


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOptions:
    """TLS, compression and AUTH of a connection to nsqd."""

    tls_v1: bool = option(False, "use TLS; the connection fails if nsqd does not offer it.")
    tls_root_ca_file: str = option("", "trusted CA certificates (PEM), in place of the system's.")
    tls_cert: str = option("", "the client's certificate (PEM), for an nsqd that requires one.")
    tls_key: str = option(
        "", "the certificate's private key (PEM); empty: it is in the ``tls_cert`` file."
    )
    tls_insecure_skip_verify: bool = option(False, "accept any certificate without verification.")
    tls_min_version: str = option(
        "tls1.2", "the oldest accepted version: tls1.0, tls1.1, tls1.2 or tls1.3."
    )
    snappy: bool = option(False, "compress with snappy if nsqd offers it.")
    deflate: bool = option(False, "compress with deflate if nsqd offers it; excludes ``snappy``.")
    deflate_level: int = option(
        6, "from 1 (fastest) to 9 (smallest); nsqd may lower it.", least=1, most=9
    )
    auth_secret: str = option(
        "",
        "sent with AUTH to an nsqd that requires it, and to nsqlookupds (see"
        " ``lookupd_authorization``). It is not in the repr, but pickled with the other options.",
        secret=True,
    )
    auth_without_tls: bool = option(
        False,
        "send the secret over a network without TLS as well, in plain text: to nsqds without"
        " TLS, and to nsqlookupds over ``http``.",
    )
    lookupd_authorization: bool = option(
        True, "send the secret to nsqlookupds, as ``Authorization: Bearer``."
    )

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            TypeError: an option has a value of another type than its default.
            ValueError: an option is out of its range, or a file cannot be used.
        """
        for field in fields(self):
            if field.default is not None:
                bounds = field.metadata["least"], field.metadata["most"]
                check_option(field.name, field.default, getattr(self, field.name), *bounds)
        if self.snappy and self.deflate:
            raise ValueError("snappy and deflate cannot be combined: set only one of them")
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls_key is set without tls_cert: set tls_cert too")
        if self.tls_min_version not in TLS_VERSIONS:
            known = ", ".join(TLS_VERSIONS)
            raise ValueError(
                f"tls_min_version must be one of {known}, not {self.tls_min_version!r}"
            )
        if not self.auth_secret.isprintable():
            raise ValueError("auth_secret contains non-printable characters")
        if self.tls_insecure_skip_verify or any(getattr(self, name) for name in _FILES):
            object.__setattr__(self, "tls_v1", True)
        if self.tls_v1:
            self.tls_context()

    def identify_fields(self) -> dict[str, Any]:
        """Return the TLS and compression fields of IDENTIFY."""
        return {
            "tls_v1": self.tls_v1,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "snappy": self.snappy,
        }

    def tls_context(self, *, check_host: bool = True) -> ssl.SSLContext:
        """Return the SSL context.

        Raises:
            ValueError: a file cannot be used; the error names its option.
        """
        stamps = tuple(_stamp(name, getattr(self, name)) for name in _FILES)
        return _context(
            stamps,
            root=self.tls_root_ca_file,
            cert=self.tls_cert,
            key=self.tls_key,
            minimum=TLS_VERSIONS[self.tls_min_version],
            verify=not self.tls_insecure_skip_verify,
            check_host=check_host,
        )

    def lookupd_headers(self, url: str) -> dict[str, str]:
        """Return the HTTP headers of a query to an nsqlookupd."""
        is_safe = self.auth_without_tls or url.startswith("https:")
        if not (self.auth_secret and self.lookupd_authorization and is_safe):
            return {}
        return {"Authorization": f"Bearer {self.auth_secret}"}


def check_lookupd_status(options: LayerOptions, url: str, status: int) -> None:
    """Check that a query was not refused for want of the secret that was not sent.

    Raises:
        ValueError: it was; the text says what to do.
    """
    has_secret = options.auth_secret and options.lookupd_authorization
    if status in DENIED and has_secret and not options.lookupd_headers(url):
        raise ValueError(
            f"status {status}, and without TLS the secret is not sent: give the nsqlookupd as an "
            "https URL, or set auth_without_tls to send it in plain text"
        )


def check_option(
    name: str, default: object, value: object, least: Any = None, most: Any = None
) -> None:
    """Check a value against the type of the option's default and against its bounds.

    Raises:
        TypeError: the value has the wrong type.
        ValueError: the value is out of range.
    """
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(default, bool):
        raise TypeError(f"{name} takes {kinds[-1].__name__}, not {type(value).__name__}")
    if least is not None and not least <= value <= most:
        shown = [f"{each:,}" if isinstance(each, int) else f"{each:g}" for each in (least, most)]
        raise ValueError(f"{name} must be from {shown[0]} to {shown[1]}, not {value}")


def _stamp(name: str, path: str) -> tuple[int, int]:
    """Return a value that changes when the file does: its mtime in nanoseconds and its inode."""
    if not path:
        return 0, 0
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except OSError as error:
        raise ValueError(f"{name} {path!r}: {error.strerror}") from None
    return found.st_mtime_ns, found.st_ino


@lru_cache(maxsize=16)
def _context(
    # Unused but for the cache: after a file was replaced, a new context is made.
    _stamps: tuple[tuple[int, int], ...],
    *,
    root: str,
    cert: str,
    key: str,
    minimum: ssl.TLSVersion,
    verify: bool,
    check_host: bool,
) -> ssl.SSLContext:
    """Make an SSL context; cached, since reading the system's CA certificates takes 30 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify and check_host
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():
        # Python warns about TLS before 1.2 even when it is configured explicitly.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = minimum
    if minimum < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers(OLD_CIPHERS)
    try:
        name, path = "tls_root_ca_file", root
        if root:
            context.load_verify_locations(root)
        elif verify:
            context.load_default_certs()
        if cert:
            name, path = "tls_cert", cert
            # A key with a passphrase is refused: without this callback OpenSSL would prompt for it.
            context.load_cert_chain(cert, key or None, password=lambda: "")
    except ssl.SSLError as error:
        expected = "a file of PEM certificates"
        if name == "tls_cert":
            beside = f"tls_key {key!r}" if key else "its key in the same file or in tls_key"
            expected = f"a PEM certificate with {beside}"
        raise ValueError(f"{name} {path!r} is not {expected}: {tls_reason(error)}") from None
    return context


PLAIN: Final = LayerOptions()
"""No TLS, no compression, no secret."""
