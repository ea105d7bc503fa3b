"""Certificates for tests: the server's, and clients' signed by an authority or by nobody else."""

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


@dataclass
class Certificates:
    """The files of the server's and clients' certificates, and the authority that signed them."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Write all certificates into the folder."""
        authority = trustme.CA()
        found = cls(folder, authority)
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        found.issue("server", authority.issue_cert("localhost", "127.0.0.1"))
        found.issue("signed", authority.issue_cert("joe@example.org", common_name="joe"))
        found.issue("foreign", trustme.CA().issue_cert("eve@example.org", common_name="eve"))
        pem = certificate("nobody", days=(-1, 1))
        (folder / "self-signed.pem").write_bytes(pem)
        (folder / "expired.pem").write_bytes(certificate("late", days=(-20, -10)))
        weak = rsa.generate_private_key(65_537, 1024)  # Go accepts it, too
        locked = weak.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        (folder / "locked.key").write_bytes(locked)
        (folder / "weak.pem").write_bytes(certificate("weak", days=(-1, 1), key=weak))
        return found

    def issue(self, name: str, certificate: trustme.LeafCert) -> None:
        """Write `name.pem` (key and chain), `name.key` and `name.crt`."""
        certificate.private_key_and_cert_chain_pem.write_to_path(str(self.folder / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.crt"))

    def options(self, **more: Any) -> dict[str, Any]:
        """nsqd's TLS options."""
        folder = self.folder
        return {
            "tls_cert": str(folder / "server.crt"),
            "tls_key": str(folder / "server.key"),
            **more,
        }

    def client(self, name: str = "", version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return a client's context, with a certificate and a single TLS version if given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        if name:
            context.load_cert_chain(str(self.folder / f"{name}.pem"))
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context


def certificate(
    name: str,
    *,
    days: tuple[int, int],
    key: rsa.RSAPrivateKey | None = None,
    signer: trustme.CA | None = None,
) -> bytes:
    """Return a key and its certificate, valid between two days relative to now.

    It is signed with the key itself, or by `signer`, which itself makes no weak keys.
    """
    own = key or ec.generate_private_key(ec.SECP256R1())
    names = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing: Any = own
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(signer.cert_pem.bytes()).subject
        signing = serialization.load_pem_private_key(signer.private_key_pem.bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .sign(signing, hashes.SHA256())
    )
    pem = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem + made.public_bytes(serialization.Encoding.PEM)
