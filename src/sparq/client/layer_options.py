"""The options of what lies between a socket and its frames: TLS, compression, and AUTH.

1. Names and defaults are go-nsq's. Each of the files, and ``tls_insecure_skip_verify``, asks for
   TLS by itself: who names a certificate authority does not mean to speak in clear.
2. The peer is verified: its certificate's chain and the host's name in it. A unix socket has no
   name: there the chain alone is verified.
3. What is wrong is told when the options are made, by the option's name; never by its value where
   that is the secret.
4. Files are read again when they have changed: a renewed certificate serves the next connection.
"""

from __future__ import annotations

import os
import ssl
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from sparq.wire.errors import tls_reason

TLS_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
OLD_CIPHERS: Final = "DEFAULT@SECLEVEL=0"
"""TLS before 1.2 signs with SHA-1, which OpenSSL refuses unless it is told not to."""

LAYER_RANGES: Final[Mapping[str, tuple[float, float]]] = {"deflate_level": (1, 9)}

_FILES: Final = ("tls_root_ca_file", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOptions:
    """TLS, compression and AUTH of a connection to nsqd.

    Attributes:
        tls_v1: speak TLS; an nsqd that does not is refused.
        tls_root_ca_file: certificates (PEM) to trust in place of the system's.
        tls_cert: the client's own certificate (PEM), for an nsqd that asks for one.
        tls_key: its key, unless that is in the same file.
        tls_insecure_skip_verify: take any certificate, of whomever.
        tls_min_version: the oldest version to speak: tls1.0, tls1.1, tls1.2 or tls1.3.
        snappy: compress by snappy, if nsqd offers that.
        deflate: compress by deflate, if nsqd offers that; not together with ``snappy``.
        deflate_level: from 1 (fast) to 9 (small); nsqd may have a lower limit.
        auth_secret: sent by AUTH to an nsqd that asks for it, and to nsqlookupds (see
            ``lookupd_authorization``). It is not shown, but pickled with the rest.
        lookupd_authorization: send the secret to nsqlookupds, as ``Authorization: Bearer``.
    """

    tls_v1: bool = False
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False
    tls_min_version: str = "tls1.2"
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    auth_secret: str = field(default="", repr=False)
    lookupd_authorization: bool = True

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            TypeError: an option has a value of another type than its default.
            ValueError: an option is out of its range, or a file cannot be used.
        """
        for option in fields(LayerOptions):
            check_option(option.name, option.default, getattr(self, option.name), LAYER_RANGES)
        if self.snappy and self.deflate:
            raise ValueError("snappy and deflate exclude each other: one of them at most")
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls_key is given without tls_cert")
        if self.tls_min_version not in TLS_VERSIONS:
            known = ", ".join(TLS_VERSIONS)
            raise ValueError(f"tls_min_version is one of {known}: {self.tls_min_version!r}")
        if not self.auth_secret.isprintable():
            raise ValueError("auth_secret has characters that are not printable")
        if self.tls_insecure_skip_verify or any(getattr(self, name) for name in _FILES):
            object.__setattr__(self, "tls_v1", True)
        if self.tls_v1:
            self.tls_context()

    def asked(self) -> dict[str, Any]:
        """What IDENTIFY asks for."""
        return {
            "tls_v1": self.tls_v1,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "snappy": self.snappy,
        }

    def tls_context(self, *, check_host: bool = True) -> ssl.SSLContext:
        """How TLS is spoken.

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

    def lookupd_headers(self) -> dict[str, str]:
        """What a question to an nsqlookupd carries."""
        if not self.auth_secret or not self.lookupd_authorization:
            return {}
        return {"Authorization": f"Bearer {self.auth_secret}"}


def check_option(
    name: str, default: object, value: object, ranges: Mapping[str, tuple[float, float]]
) -> None:
    """Hold a value to the type of the option's default and to its range.

    Raises:
        TypeError: it has another type.
        ValueError: it is out of the range.
    """
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(default, bool):
        raise TypeError(f"{name} takes {kinds[-1].__name__}, not {type(value).__name__}")
    if name not in ranges:
        return
    low, high = ranges[name]
    assert isinstance(value, (int, float)), name
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, not within {_shown(low)} to {_shown(high)}")


def _shown(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _stamp(name: str, path: str) -> tuple[int, int]:
    """What changes when a file does."""
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
    _stamps: tuple[tuple[int, int], ...],
    *,
    root: str,
    cert: str,
    key: str,
    minimum: ssl.TLSVersion,
    verify: bool,
    check_host: bool,
) -> ssl.SSLContext:
    """Made once for the same files: reading the system's authorities takes 30 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify and check_host
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():
        # Python warns of TLS before 1.2 whoever asks for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = minimum
    if minimum < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers(OLD_CIPHERS)
    _load(context, root, cert, key, verify)
    return context


def _load(context: ssl.SSLContext, root: str, cert: str, key: str, verify: bool) -> None:
    try:
        option, path = "tls_root_ca_file", root
        if root:
            context.load_verify_locations(root)
        elif verify:
            context.load_default_certs()
        if cert:
            option, path = "tls_cert", cert
            # A key with a pass phrase is refused: nobody is there to be asked for it.
            context.load_cert_chain(cert, key or None, password=lambda: "")
    except ssl.SSLError as error:
        expected = "certificates (PEM)"
        if option == "tls_cert":
            beside = f"tls_key {key!r}" if key else "its key in the same file, or as tls_key"
            expected = f"a certificate (PEM) with {beside}"
        raise ValueError(f"{option} {path!r} is not {expected}: {tls_reason(error)}") from None


PLAIN: Final = LayerOptions()
"""Neither TLS nor compression, and no secret."""
