"""nsqd's TLS versions, ciphers and client certificates (N-10)."""

import ssl
import warnings

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.tls import server_context
from tests.support.certificates import Certificates
from tests.support.options import changed

WEAK = ("NULL", "EXP", "RC4", "DES", "MD5", "ADH", "AECDH", "IDEA", "SEED", "RC2", "PSK", "SRP")
EVERYTHING = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"


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


def test_weak_ciphers_are_refused(certificates: Certificates) -> None:
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
