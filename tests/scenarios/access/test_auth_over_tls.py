"""AUTH and TLS: clients with certificates, and auth servers reached over HTTPS."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.authd import answer, entry, running
from tests.support.certificates import Certificates

ALL = answer(entry())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def server_side(certificates: Certificates, name: str = "server") -> ssl.SSLContext:
    """The TLS context of an auth server that serves HTTPS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificates.folder / f"{name}.pem"))
    return context


@asynccontextmanager
async def nsqd_with_tls(
    folder: Path, certificates: Certificates, *addresses: str, **options: Any
) -> AsyncIterator[Daemon]:
    """Run an nsqd that trusts the test CA, for clients and for auth servers."""
    authority = str(certificates.folder / "ca.pem")
    daemon = await start(
        folder,
        auth_http_addresses=addresses,
        **certificates.options(tls_root_ca_file=authority, **options),
    )
    try:
        yield daemon
    finally:
        await stop(daemon)


@pytest.mark.parametrize("name", ["foreign", "self-signed"])
async def test_an_untrusted_auth_server_gets_no_secret(
    tmp_path: Path, certificates: Certificates, name: str
) -> None:
    """nsqd sends no secret to an auth server whose certificate the root CA has not signed."""
    async with (
        running(ALL, tls=server_side(certificates, name)) as authd,
        nsqd_with_tls(tmp_path, certificates, f"https://{authd.address}/auth") as daemon,
        connected(daemon) as client,
    ):
        client.send(c.auth(b"key"))
        assert b"E_AUTH_FAILED AUTH failed" == await client.error()
        assert [] == authd.asked


@pytest.mark.parametrize("method", ["get", "post"])
async def test_an_https_port_in_a_403_response_is_used(
    tmp_path: Path, certificates: Certificates, method: str
) -> None:
    """A 403 response with an `https_port` makes nsqd send the same request once to that port."""
    async with running(ALL, tls=server_side(certificates)) as secure:
        there = json.dumps({"message": "TLS_REQUIRED", "https_port": secure.port}).encode()
        async with (
            running((403, there)) as plain,
            nsqd_with_tls(
                tmp_path, certificates, plain.address, auth_http_request_method=method
            ) as daemon,
            connected(daemon) as client,
        ):
            client.send(c.auth(b"key"))
            assert 1 == json.loads(await client.response())["permission_count"]
            assert plain.asked == secure.asked
            assert 1 == len(secure.asked)


async def test_remote_ip_is_empty_for_a_unix_socket(
    tmp_path: Path, certificates: Certificates
) -> None:
    """For a client on a unix socket, the auth server gets an empty `remote_ip`."""
    place = str(tmp_path / "s")
    async with (
        running(ALL) as authd,
        nsqd_with_tls(tmp_path, certificates, authd.address, tcp_address=place) as daemon,
        connected(daemon) as client,
    ):
        client.send(c.auth(b"key"))
        await client.response()
        (_, _, values), *_ = authd.asked
        assert ("", "false") == (values["remote_ip"], values["tls"])


async def test_sighup_replaces_the_root_ca(tmp_path: Path, certificates: Certificates) -> None:
    """After SIGHUP, nsqd uses the new root CA for auth servers.

    An invalid CA file changes nothing.
    """
    place = tmp_path / "root.pem"
    place.write_bytes((certificates.folder / "ca.pem").read_bytes())
    other = trustme.CA()
    certificate = other.issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    async with running(ALL, tls=context) as authd:
        daemon = await start(
            tmp_path,
            auth_http_addresses=(f"https://{authd.address}/auth",),
            tls_root_ca_file=str(place),
        )
        try:
            for root, answered in ((None, False), (other.cert_pem.bytes(), True), (b"", True)):
                if root is not None:
                    place.write_bytes(root)
                    daemon.reloader.reload()
                async with connected(daemon) as client:
                    client.send(c.auth(b"key"))
                    kind, data = await client.frame()
                    assert answered == (kind == 0), data
        finally:
            await stop(daemon)
