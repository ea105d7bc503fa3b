"""Certificates for tests: an authority, certificates it has signed, and invalid ones.

``certificates(folder)`` writes them as PEM files; all but the authority's include the private key.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Certificates:
    """Paths of the PEM files.

    Attributes:
        authority: the authority that clients trust; it signed all but the last two.
        server: valid for the loopback addresses.
        elsewhere: valid for another host.
        expired: expired yesterday.
        client: a client certificate.
        stranger: signed by an untrusted authority.
        self_signed: signed by itself.
    """

    authority: Path
    server: Path
    elsewhere: Path
    expired: Path
    client: Path
    stranger: Path
    self_signed: Path


def certificates(folder: Path) -> Certificates:
    """Create all certificates in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, other = trustme.CA(), trustme.CA()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    made = Certificates(
        **{name: folder / f"{name}.pem" for name in Certificates.__dataclass_fields__}
    )
    authority.cert_pem.write_to_path(str(made.authority))
    leaves = {
        made.server: authority.issue_cert(*HOSTS),
        made.elsewhere: authority.issue_cert("elsewhere.example"),
        made.expired: authority.issue_cert(
            *HOSTS, not_before=yesterday - datetime.timedelta(days=1), not_after=yesterday
        ),
        made.client: authority.issue_cert("client", common_name="client"),
        made.stranger: other.issue_cert(*HOSTS),
    }
    for path, leaf in leaves.items():
        leaf.private_key_and_cert_chain_pem.write_to_path(str(path))
    # An authority's certificate is self-signed.
    made.self_signed.write_bytes(other.private_key_pem.bytes() + other.cert_pem.bytes())
    return made


def server_context(
    files: Certificates, cert: Path | None = None, *, ask_client: bool = False
) -> ssl.SSLContext:
    """A server's TLS context with this certificate; `ask_client` requires client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert or files.server)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.authority)
    return context
