"""TLS: accepted versions and client certificates, over TCP, Unix sockets and HTTPS."""

import asyncio
import inspect
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sparq.broker.stats import of_client
from sparq.nsqd import tls
from sparq.nsqd.options import HTTPS_ADDRESS, NsqdOptions
from sparq.nsqd.tcp import LAYERED_BYTES
from sparq.nsqd.tls import first_certificate, standard_name
from sparq.program.lifecycle import StartError
from sparq.protocol.commands import identify, pub, rdy, sub
from sparq.protocol.frames import BodySlices
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.certificates import Certificates, certificate
from tests.support.options import changed
from tests.support.v2_client import Closed
from tests.support.waiting import until

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
Starter = Callable[..., Any]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as found:
        yield found


@pytest.fixture(params=["tcp", "unix"])
def run(
    request: pytest.FixtureRequest,
    stack: AsyncExitStack,
    tmp_path: Path,
    certificates: Certificates,
) -> Starter:
    """Start an nsqd with a certificate and these options, on a TCP port or a Unix socket."""
    address = {"tcp_address": str(tmp_path / "s")} if request.param == "unix" else {}

    async def starter(**options: Any) -> Daemon:
        daemon = await start(tmp_path, **{**certificates.options(**address), **options})
        stack.push_async_callback(stop, daemon)
        return daemon

    return starter


async def check_refused(daemon: Daemon, context: ssl.SSLContext) -> None:
    """Check that a client with this context gets no connection."""
    async with connected(daemon) as client:
        with pytest.raises((ssl.SSLError, Closed, ConnectionError)):
            await client.upgrade(context)


async def facts_of_handshake(daemon: Daemon, context: ssl.SSLContext) -> dict[str, Any]:
    """Publish as a client with this context; return the facts of its handshake."""
    async with connected(daemon) as client:
        await client.upgrade(context)
        client.send(pub("t", b"x"))
        assert b"OK" == await client.response()
        session = next(iter(daemon.nsqd.turns.by_session))
        assert session.tls is not None
        assert session.tls.common_name == of_client(session, None).tls_common_name
        return session.tls._asdict()


# V2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.behaviour("TestTLS", "unix.TestTLS")
async def test_stats_have_the_facts_of_the_handshake(
    run: Starter, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """TLS 1.2 and 1.3 work by default; /stats has version and cipher suite in Go's form."""
    daemon = await run()
    async with connected(daemon) as client:
        await client.upgrade(certificates.client(version=version))
        client.send(pub("t", b"x"))
        assert b"OK" == await client.response()
        (stats,) = (await daemon.stats())["producers"]

    assert stats["tls"] is True
    assert {771: "TLS1.2", 772: "TLS1.3"}[version] == stats["tls_version"]
    assert stats["tls_cipher_suite"].startswith("TLS_")
    assert stats["tls_negotiated_protocol_is_mutual"] is True


def limited_to(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Restrict a client to one old version."""
    with pytest.warns(DeprecationWarning):
        context.minimum_version = version
    with pytest.warns(DeprecationWarning):
        context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


async def test_old_versions_need_the_flag(run: Starter, certificates: Certificates) -> None:
    """TLS 1.1 is refused by default."""
    context = limited_to(certificates.client(), ssl.TLSVersion.TLSv1_1)
    strict = await run()
    await check_refused(strict, context)
    await facts_of_handshake(strict, certificates.client())


async def test_old_versions_are_accepted_with_the_flag(
    run: Starter, certificates: Certificates
) -> None:
    """With --tls-min-version=tls1.0 a client may use TLS 1.1."""
    loose = await run(tls_min_version="tls1.0")
    context = limited_to(certificates.client(), ssl.TLSVersion.TLSv1_1)

    assert "TLS1.1" == (await facts_of_handshake(loose, context))["version"]


@pytest.mark.behaviour("TestTLSRequired", "unix.TestTLSRequired")
@pytest.mark.parametrize("required", ["true", "tcp-https"])
async def test_tls_can_be_required(run: Starter, certificates: Certificates, required: str) -> None:
    """Without TLS, SUB gets E_INVALID, before and after an IDENTIFY."""
    daemon = await run(tls_required=required)
    for identified in (False, True):
        async with connected(daemon) as client:
            if identified:
                await client.identify()
            client.send(sub("t", "c"))
            text = b"E_INVALID cannot SUB in current state (TLS required)"
            assert text == await client.error()
    async with connected(daemon) as client:
        await client.upgrade(certificates.client())
        client.send(sub("t", "c"))
        assert b"OK" == await client.response()


@pytest.mark.behaviour("TestTLSAuthRequire", "unix.TestTLSAuthRequire")
@pytest.mark.parametrize("version", VERSIONS)
async def test_require_accepts_any_client_certificate(
    run: Starter, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """`require` needs a certificate and accepts any, even an expired or a weak one.

    As in Go, authd gets its common name, which nobody has verified.
    """
    daemon = await run(tls_client_auth_policy="require")

    await check_refused(daemon, certificates.client("", version))
    names = {"self-signed": "nobody", "foreign": "eve", "signed": "joe", "expired": "late"}
    for name, common_name in names.items():
        facts = await facts_of_handshake(daemon, certificates.client(name, version))
        assert common_name == facts["common_name"]
    weak = certificates.client("", version)
    weak.set_ciphers("DEFAULT:@SECLEVEL=1")
    weak.load_cert_chain(str(certificates.folder / "weak.pem"))
    assert "weak" == (await facts_of_handshake(daemon, weak))["common_name"]
    async with connected(daemon) as client:
        client.send(sub("t", "c"))
        text = b"E_INVALID cannot SUB in current state (TLS required)"
        assert text == await client.error()


@pytest.fixture
def very_weak(certificates: Certificates) -> Path:
    """A key of 768 bits, with a certificate that the authority has signed."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("needs openssl")
    pem = subprocess.run([openssl, "genrsa", "768"], capture_output=True, check=True).stdout
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, rsa.RSAPrivateKey)
    path = certificates.folder / "very-weak.pem"
    path.write_bytes(certificate("weak", days=(-1, 1), key=key, signer=certificates.authority))
    return path


async def test_a_very_weak_key_is_refused_with_a_line_in_the_log(
    run: Starter, certificates: Certificates, very_weak: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A key below 1,024 bits is refused, and the log says why; see docs/differences.md."""
    caplog.set_level("INFO")
    authority = str(certificates.folder / "ca.pem")
    daemon = await run(tls_client_auth_policy="require-verify", tls_root_ca_file=authority)
    weak = certificates.client("")
    weak.set_ciphers("DEFAULT:@SECLEVEL=0")
    weak.load_cert_chain(very_weak)

    await check_refused(daemon, weak)

    assert "EE certificate key too weak" in caplog.text


ANY_CERTIFICATE = """
import ssl, sys
from typing import Any
_CERTIFICATE, WEAK_KEYS = 11, "@SECLEVEL=1"
{functions}
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(sys.argv[1])
server.verify_mode = ssl.CERT_REQUIRED
server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(0x200000)
assert hasattr(ssl.SSLContext, "{callback}")
server.{callback} = _trust_what_arrives
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.minimum_version = client.maximum_version = version
    client.load_cert_chain(sys.argv[2])
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for end in ends * 4:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert ends[1].getpeercert()["subject"], version
"""


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_require_works_on_each_installed_python(certificates: Certificates, python: str) -> None:
    """`require` uses a private name of `ssl`, so each installed Python is tested."""
    program = shutil.which(python)
    if program is None or subprocess.run([program, "-c", ""], check=False).returncode:
        pytest.skip(f"needs {python}")
    functions = (tls._trust_what_arrives, tls.first_certificate, tls.accept_weak_keys)
    sources = "\n".join(map(inspect.getsource, functions))
    text = ANY_CERTIFICATE.format(functions=sources, callback=tls.CALLBACK)
    files = [str(certificates.folder / name) for name in ("server.pem", "self-signed.pem")]

    subprocess.run([program, "-c", text, *files], check=True, timeout=60)


def test_require_is_refused_on_an_unsuitable_python(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd does not start, and prints the reason: it would refuse every client."""
    assert hasattr(ssl.SSLContext, tls.CALLBACK)
    assert "_msg_callback" == tls.CALLBACK
    # The attribute cannot be deleted: SSLContext's base class, written in C, has it too.
    monkeypatch.setattr(tls, "CALLBACK", "_hook_of_another_python")
    with pytest.raises(StartError, match=r"has no _hook_of_another_python.*use require-verify"):
        tls.build(changed(NsqdOptions(), **certificates.options(tls_client_auth_policy="require")))


@pytest.mark.behaviour("TestTLSAuthRequireVerify", "unix.TestTLSAuthRequireVerify")
@pytest.mark.parametrize("version", VERSIONS)
async def test_require_verify_accepts_only_signed_certificates(
    run: Starter, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """`require-verify` accepts only certificates signed by the root CA, with their common name."""
    root = str(certificates.folder / "ca.pem")
    daemon = await run(tls_client_auth_policy="require-verify", tls_root_ca_file=root)

    for name in ("", "self-signed", "foreign", "expired"):
        await check_refused(daemon, certificates.client(name, version))
    facts = await facts_of_handshake(daemon, certificates.client("signed", version))
    assert "joe" == facts["common_name"]


async def test_without_a_certificate_tls_is_not_offered(tmp_path: Path) -> None:
    """The reply to IDENTIFY has `tls_v1: false`, and the client continues without TLS."""
    daemon = await start(tmp_path)
    async with connected(daemon) as client:
        assert (await client.identify(tls_v1=True))["tls_v1"] is False
        client.send(pub("t", b"x"))
        assert b"OK" == await client.response()
    await stop(daemon)


async def test_a_damaged_record_ends_the_connection(
    run: Starter, certificates: Certificates
) -> None:
    """A record that was changed in transit is never executed as a command."""
    daemon = await run()
    async with connected(daemon) as client:
        await client.upgrade(certificates.client())
        record = bytearray(client.stream.seal(pub("t", b"body")))
        record[-1] ^= 1
        client.writer.write(bytes(record))
        with pytest.raises((Closed, ssl.SSLError)):
            while True:
                await client.exactly(1)

    assert [] == (await daemon.stats())["topics"]


async def test_heartbeats_are_sent_over_tls(run: Starter, certificates: Certificates) -> None:
    """Heartbeats are encrypted; a client that does not reply is dropped after two intervals."""
    daemon = await run()
    async with connected(daemon) as client:
        await client.upgrade(certificates.client(), heartbeat_interval=1000)
        assert b"_heartbeat_" == await client.response()
        with pytest.raises(Closed):
            while True:
                assert b"_heartbeat_" == await client.response()


# Certificates that change


async def test_new_handshakes_use_new_certificates(
    run: Starter, certificates: Certificates, tmp_path: Path
) -> None:
    """A reload keeps open connections, applies to V2 and HTTPS; bad files change nothing."""
    other = tmp_path / "other"
    other.mkdir()
    newer = Certificates.make(other)
    daemon = await run()
    assert daemon.nsqd.tls is not None
    async with connected(daemon) as client:
        await client.upgrade(certificates.client())
        daemon.nsqd.tls.load(changed(NsqdOptions(), **newer.options()))
        client.send(pub("t", b"x"))
        assert b"OK" == await client.response()
    await check_refused(daemon, certificates.client())
    await facts_of_handshake(daemon, newer.client())
    assert 200 == (await https(daemon, newer.client(), "GET", "/ping"))[0]

    with pytest.raises(StartError, match=r"failed to build TLS config - open .*/gone"):
        daemon.nsqd.tls.load(
            changed(NsqdOptions(), **newer.options(tls_key=str(tmp_path / "gone")))
        )
    await facts_of_handshake(daemon, newer.client())


BAD = {
    "no such file": ({"tls_cert": "/nowhere/c"}, "open /nowhere/c: no such file or directory"),
    "an encrypted key": ({"tls_key": "locked.key"}, "the key .*locked.key is encrypted"),
    "no key": ({"tls_key": ""}, "open : no such file or directory"),
    "a foreign key": ({"tls_key": "foreign.key"}, "[Kk][Ee][Yy]"),
    "no certificate in it": ({"tls_cert": "server.key"}, ""),
    "no root CA": ({"tls_root_ca_file": "/nowhere/ca"}, "open /nowhere/ca: no such file"),
    "no CA in it": ({"tls_root_ca_file": "server.key"}, ""),
}


@pytest.mark.parametrize("bad", BAD)
def test_unusable_files_are_named_in_the_error(certificates: Certificates, bad: str) -> None:
    """nsqd does not start; the error has the file or the reason."""
    changes, text = BAD[bad]
    folder = certificates.folder
    files = {
        key: value if value.startswith("/") or not value else str(folder / value)
        for key, value in changes.items()
    }
    with pytest.raises(StartError, match=f"^failed to build TLS config - .*{text}"):
        tls.build(changed(NsqdOptions(), **certificates.options(**files)))


# HTTP


@asynccontextmanager
async def session(context: ssl.SSLContext) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=context)
    timeout = aiohttp.ClientTimeout(30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as found:
        yield found


async def https(
    daemon: Daemon, context: ssl.SSLContext, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    """Send a request to the HTTPS port; return status and body."""
    url = f"https://localhost:{daemon.nsqd.https_port}{path}"
    async with session(context) as client, client.request(method, url, data=body) as answer:
        return answer.status, await answer.read()


async def test_https_answers_as_http_does(run: Starter, certificates: Certificates) -> None:
    """HTTPS has the same routes and errors as HTTP."""
    daemon = await run()
    context = certificates.client()

    assert (200, b"OK") == await https(daemon, context, "GET", "/ping")
    assert (200, b"OK") == await https(daemon, context, "POST", "/pub?topic=t", b"x")
    assert (200, b"OK") == await daemon.ask("GET", "/ping")
    status, answer = await https(daemon, context, "GET", "/nowhere")
    assert (404, {"message": "NOT_FOUND"}) == (status, json.loads(answer))


async def plain_is_refused(daemon: Daemon) -> None:
    text = f'{{"message": "TLS_REQUIRED", "https_port": {daemon.nsqd.https_port}}}'
    for method, path in (("POST", "/pub?topic=t"), ("GET", "/ping"), ("GET", "/nowhere")):
        length = b"Content-Length: 1\r\n\r\nx"
        status, headers, answer = await daemon.raw(f"{method} {path} HTTP/1.1", length)
        assert (403, text) == (status, answer.decode())
        assert "application/json; charset=utf-8" == headers["content-type"]
        assert "nsq; version=1.0" == headers["x-nsq-content-type"]


@pytest.mark.behaviour("TestHTTPSRequire", "more.tls-required-403")
async def test_plain_http_is_refused_if_tls_is_required(
    run: Starter, certificates: Certificates
) -> None:
    """If TLS is required, every plain HTTP request gets 403 with the HTTPS port."""
    daemon = await run(tls_client_auth_policy="require")

    await plain_is_refused(daemon)
    context = certificates.client("self-signed")
    assert (200, b"OK") == await https(daemon, context, "POST", "/pub?topic=t", b"x")
    assert 1 == daemon.nsqd.broker.topics["t"].depth()
    with pytest.raises(aiohttp.ClientError):
        await https(daemon, certificates.client(), "GET", "/ping")


@pytest.mark.behaviour("TestHTTPSRequireVerify")
async def test_https_verifies_certificates(run: Starter, certificates: Certificates) -> None:
    """The policy for client certificates applies to HTTPS, too."""
    root = str(certificates.folder / "ca.pem")
    daemon = await run(tls_client_auth_policy="require-verify", tls_root_ca_file=root)

    await plain_is_refused(daemon)
    for name in ("", "self-signed", "foreign"):
        with pytest.raises(aiohttp.ClientError):
            await https(daemon, certificates.client(name), "GET", "/ping")
    context = certificates.client("signed")
    assert (200, b"OK") == await https(daemon, context, "POST", "/pub?topic=t", b"x")
    assert 1 == daemon.nsqd.broker.topics["t"].depth()


@pytest.mark.behaviour("TestTLSRequireVerifyExceptHTTP")
async def test_tcp_https_allows_plain_http(run: Starter, certificates: Certificates) -> None:
    """With tcp-https, V2 clients need TLS and a certificate, plain HTTP clients neither."""
    root = str(certificates.folder / "ca.pem")
    daemon = await run(
        tls_client_auth_policy="require-verify", tls_root_ca_file=root, tls_required="tcp-https"
    )

    assert b"OK" == await daemon.post("/pub?topic=t", b"x")
    await check_refused(daemon, certificates.client())
    await facts_of_handshake(daemon, certificates.client("signed"))


# Details


def test_the_first_certificate_is_found() -> None:
    """The certificate is found in TLS 1.2 and 1.3 messages; truncation does no harm."""
    listed = b"\0\0\3abc\0\0\2de"
    older = b"\x0b\0\0\x0e" + len(listed).to_bytes(3) + listed
    newer = b"\x0b\0\0\x12\0" + len(listed).to_bytes(3) + listed

    assert b"abc" == first_certificate(older)
    assert b"abc" == first_certificate(newer)
    assert b"" == first_certificate(b"\x0b\0\0\3\0\0\0")
    for at in range(len(newer)):
        assert first_certificate(newer[:at]) in (b"", b"a", b"ab", b"abc")


@pytest.mark.parametrize(
    ("openssl", "rfc"),
    [
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("DHE-RSA-AES256-SHA256", "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("AES256-GCM-SHA384", "TLS_RSA_WITH_AES_256_GCM_SHA384"),
    ],
)
def test_cipher_suites_have_their_standard_names(openssl: str, rfc: str) -> None:
    """OpenSSL's names are translated to the names in the RFCs."""
    assert rfc == standard_name(openssl)


async def test_a_silent_client_in_a_handshake_does_not_delay_the_stop(
    run: Starter, certificates: Certificates
) -> None:
    """nsqd can close its connections while a client is in the middle of a TLS upgrade."""
    daemon = await run()
    async with connected(daemon) as client:
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        client.send(identify(body))
        await client.response()
        async with connected(daemon) as other:
            await other.upgrade(certificates.client())
            async with asyncio.timeout(30):
                for connection in tuple(daemon.nsqd.connections):
                    connection.close()
                await other.end()
                await client.end()

            async def all_gone() -> bool:
                return not daemon.nsqd.connections

            await until(all_gone)


async def test_without_its_flag_https_opens_no_further_network(
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """HTTPS listens on loopback like HTTP, and a warning says what Go's nsqd would do."""
    monkeypatch.setattr("sparq.nsqd.options.HTTPS_PORT", 0)
    daemon = await start(tmp_path, https_address=HTTPS_ADDRESS, **certificates.options())
    https = daemon.listeners.https
    await stop(daemon)

    assert https is not None
    assert https.text.startswith("127.0.0.1:")
    assert f"--https-address=0.0.0.0:{https.port}" in caplog.text


@pytest.mark.parametrize("compression", ["", "deflate", "snappy"])
async def test_a_consumer_that_never_reads_holds_little(
    run: Starter, certificates: Certificates, compression: str
) -> None:
    """Behind TLS, with or without compression, at most two small buffers and a message wait."""
    daemon = await run()
    body = os.urandom(50_000)
    await daemon.nsqd.publish("t", BodySlices.of([body] * 200))
    await daemon.nsqd.publish("t", BodySlices.of([body] * 200))
    async with connected(daemon) as client:
        await client.upgrade(certificates.client(), compression)
        client.send(sub("t", "c") + rdy(2_500))
        (session,) = daemon.nsqd.turns.by_session
        await until(lambda: session.paused_writing)
        transport = daemon.nsqd.turns.by_session[session]._transport

        assert session.outbox_bytes == 0
        assert transport.get_write_buffer_size() <= 2 * (LAYERED_BYTES + len(body))
        client.abort()
