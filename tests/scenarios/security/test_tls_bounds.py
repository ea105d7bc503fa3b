"""nsqd's TLS versions, ciphers and client certificates (N-10)."""

import shutil
import ssl
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.tls import server_context
from tests.support.certificates import Certificates
from tests.support.options import changed
from tests.support.servers import free_port, spawn_nsqd

WEAK = ("NULL", "EXP", "RC4", "DES", "MD5", "ADH", "AECDH", "IDEA", "SEED", "RC2", "PSK", "SRP")
EVERYTHING = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
Shows = Callable[[str], None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def client(certificates: Certificates, name: str = "") -> ssl.SSLContext:
    """A TLS client that accepts any version and cipher."""
    context = certificates.client(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers(EVERYTHING)
    return context


def shake_hands(server: ssl.SSLContext, context: ssl.SSLContext) -> ssl.SSLObject | None:
    """Shake hands in memory; return the client's side, or None if either side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
    return ends[0] if len(done) == 2 else None


def options(certificates: Certificates, **more: str) -> NsqdOptions:
    return changed(NsqdOptions(), **certificates.options(**more))


@pytest.mark.security("N-10")
def test_old_versions_are_refused(certificates: Certificates, shows: Shows) -> None:
    """By default nsqd accepts TLS 1.2 and 1.3; with tls-min-version 1.3, only 1.3."""
    spoken: dict[str, list[str]] = {}
    for oldest in ("tls1.2", "tls1.3"):
        server = server_context(options(certificates, tls_min_version=oldest))
        for version in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"):
            context = client(certificates)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
            if shake_hands(server, context) is not None:
                spoken.setdefault(oldest, []).append(version)

    assert NsqdOptions().tls.min_version == "tls1.2"
    assert {"tls1.2": ["TLSv1_2", "TLSv1_3"], "tls1.3": ["TLSv1_3"]} == spoken
    shows("TLS 1.0 and 1.1 accepted: no · 1.2 and 1.3: yes")


@pytest.mark.security("N-10")
def test_weak_ciphers_are_refused(certificates: Certificates, shows: Shows) -> None:
    """nsqd accepts only ciphers with at least 128 bits and without known weaknesses."""
    server = server_context(options(certificates))
    taken, tried = [], 0
    for cipher in client(certificates).get_ciphers():
        if cipher["protocol"] == "TLSv1.3":
            continue  # these are all strong, and cannot be offered alone
        context = client(certificates)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{cipher['name']}:@SECLEVEL=0")
        tried += 1
        if shake_hands(server, context) is not None:
            taken.append(cipher)

    weak = [
        cipher["name"]
        for cipher in taken
        if cipher["strength_bits"] < 128 or any(part in cipher["name"] for part in WEAK)
    ]
    assert tried > 50
    assert taken
    assert [] == weak
    shows(f"ciphers tried {tried} · taken {len(taken)} · weak 0")


@pytest.mark.security("N-10")
def test_client_certificates_can_be_required(certificates: Certificates) -> None:
    """`require` accepts any client certificate, `require-verify` only those of the given CA."""
    ca = {"tls_root_ca_file": str(certificates.folder / "ca.pem")}
    expected = {
        "require": {"": False, "signed": True, "foreign": True},
        "require-verify": {"": False, "signed": True, "foreign": False},
    }
    for policy, outcomes in expected.items():
        server = server_context(options(certificates, tls_client_auth_policy=policy, **ca))
        for name, accepted in outcomes.items():
            context = client(certificates, name)
            # In TLS 1.3 the client's handshake ends before the server has checked its certificate.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            found = shake_hands(server, context) is not None

            assert accepted == found, (policy, name)


@pytest.mark.security("N-10")
@pytest.mark.skipif(shutil.which("sslscan") is None, reason="needs sslscan")
def test_sslscan_finds_no_old_protocol(tmp_path: Path, certificates: Certificates) -> None:
    """sslscan finds no old protocol, no DES and no heartbleed on nsqd's HTTPS port."""
    port = free_port()
    folder = certificates.folder
    flags = (f"--tls-cert={folder}/server.crt", f"--tls-key={folder}/server.key")
    with spawn_nsqd(tmp_path, *flags, f"--https-address=127.0.0.1:{port}"):
        scan = ["sslscan", "--no-colour", f"127.0.0.1:{port}"]
        said = subprocess.run(scan, capture_output=True, timeout=100, check=True, text=True).stdout
    versions = {line.split()[0]: line.split()[1] for line in said.splitlines() if "abled" in line}

    for old in ("SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1"):
        assert versions[old] == "disabled", said
    assert versions["TLSv1.2"] == versions["TLSv1.3"] == "enabled"
    assert not [line for line in said.splitlines() if line.startswith("Accepted") and "DES" in line]
    assert "vulnerable to heartbleed" not in said.replace("not vulnerable to heartbleed", "")
