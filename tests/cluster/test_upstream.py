"""cluster.upstream: it calls only known daemons, within limits; every failure is UpstreamError."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from sparq.cluster import upstream as module
from sparq.cluster.upstream import Upstream, UpstreamError
from sparq.protocol import lookup
from tests.cluster.peers import answer, peer
from tests.nsqd.daemon import start, stop
from tests.support.servers import NsqdServer, spawn_nsqd


async def refused(upstream: Upstream, address: str, path: str = "/x") -> UpstreamError:
    with pytest.raises(UpstreamError) as found:
        await upstream.get(address, path)
    return found.value


async def test_get_read_and_post_return_the_answer(
    upstream: Upstream, nsqds: tuple[NsqdServer, NsqdServer]
) -> None:
    """``get`` returns a document, ``read`` the raw answer, ``post`` None if it is empty."""
    nsqd = nsqds[0].http
    upstream.set_configured([nsqd, f"http://{nsqd}"])

    assert "1.3.0" == (await upstream.get(nsqd, "/info"))["version"]
    assert "1.3.0" == (await upstream.get(f"http://{nsqd}", "/info"))["version"]
    assert b"OK" == await upstream.read(nsqd, "/ping")
    assert await upstream.post(nsqd, "/topic/create", topic="upstream") is None
    assert (4, 0) == (upstream.calls, upstream.failures)


async def test_requests_have_nsqs_header_and_the_token() -> None:
    """Requests have the Accept header of NSQ's nsqadmin, and the token if one is set."""
    async with peer({"/x": answer({})}) as there, Upstream(token="secret") as upstream:
        upstream.set_configured([there.address])
        await upstream.get(there.address, "/x")

    (head,) = there.heads
    assert "\r\nAccept: application/vnd.nsq; version=1.0\r\n" in head
    assert "\r\nAuthorization: Bearer secret\r\n" in head
    assert "\r\nAccept-Encoding: identity\r\n" in head


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_token_goes_to_trusted_addresses_alone(trusted: bool) -> None:
    """A listed address gets the token if it is trusted; else a 401 says why it was not sent."""
    refused = {"/x": answer({"message": "UNAUTHORIZED"}, "401 Unauthorized")}
    async with peer(refused) as there, Upstream(token="secret") as upstream:
        upstream.set_listed({there.address: trusted})
        with pytest.raises(UpstreamError) as error:
            await upstream.get(there.address, "/x")

    (head,) = there.heads
    assert trusted is ("Authorization: Bearer secret" in head)
    assert trusted is not error.value.reason.startswith("requires a token, which was not sent")


async def test_unknown_daemons_are_not_called(upstream: Upstream) -> None:
    """Unknown daemons, and those no longer known, are refused without a connection."""
    async with peer({"/x": answer({})}) as there:
        assert "not a node of this cluster" in (await refused(upstream, there.address)).reason
        upstream.set_listed({there.address: False})
        await upstream.get(there.address, "/x")
        upstream.set_listed({"127.0.0.1:1": False})
        assert "not a node of this cluster" in (await refused(upstream, there.address)).reason

    assert 1 == there.connections


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_no_redirect_is_followed(upstream: Upstream, status: str) -> None:
    """A redirect is an error with its status, and its target gets no connection."""
    async with peer({"/x": answer({})}) as trap:
        to = f"Location: http://{trap.address}/x"
        async with peer({"/x": answer(b"", status, to)}) as there:
            upstream.set_listed({there.address: False})
            error = await refused(upstream, there.address)

    assert int(status[:3]) == error.status
    assert 0 == trap.connections


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer(b"{"), "answer is not JSON"),
        (answer(b""), "answer is not JSON"),
        (answer(b'{"a": NaN}'), "answer is not JSON"),
        (answer(b"[" * 100_000), "answer is not JSON"),
        (answer(b"\xff\xfe"), "answer is not JSON"),
        (b"nonsense\r\n\r\n", "an answer that is not HTTP: is this the port for HTTP?"),
        (answer({"message": "NO\x1b"}, "404 Not \x1bFound"), None),
        (answer(b"no", "403 Forbidden"), 'got response 403 Forbidden "no"'),
        (answer({"https_port": True}, "403 No"), None),
        (answer({"https_port": 65536}, "403 No"), None),
        (answer(b"x" * 2000), "answer exceeds the limit of 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", None),
    ],
)
async def test_bad_answers_are_errors(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, sent: bytes, reason: str | None
) -> None:
    """Any bad answer is an UpstreamError with printable text and the address."""
    monkeypatch.setattr(
        module, "ANSWER_BYTES_MAX", 1000 if reason and "1000" in reason else 1 << 20
    )
    async with peer({"/x": sent}) as there:
        upstream.set_configured([there.address])
        error = await refused(upstream, there.address)

    assert reason in (None, error.reason)
    assert str(error).isprintable()
    assert str(error).endswith(f"({there.address})")


async def test_look_up_checks_and_bounds_the_answer(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``look_up`` uses the path of the nsqlookupd's URL; wrong answers raise UpstreamError."""
    sent = {"/nsq/nodes": answer({"producers": []}), "/nsq/topics": answer(b"<html>")}
    async with peer({**sent, "/nsq/channels": answer(b"x" * 2000)}) as there:
        at = f"http://{there.address}/nsq/lookup"
        upstream.set_configured([at])
        monkeypatch.setattr(lookup, "ANSWER_BYTES_MAX", 1000)
        assert {"producers": []} == await upstream.look_up(at, "nodes")
        for route, reason in (
            ("topics", "answer is not JSON, so the server is not an nsqlookupd"),
            ("channels", "answer exceeds the limit of 1000 bytes"),
            ("lookup", "is this nsqlookupd's HTTP port (4161 by default)?"),
        ):
            with pytest.raises(UpstreamError) as found:
                await upstream.look_up(at, route, topic="t#ephemeral")
            assert reason in found.value.reason

    assert "GET /nsq/lookup?topic=t%23ephemeral" == there.asked[-1]


async def test_a_wrapped_document_is_unwrapped(upstream: Upstream) -> None:
    """A document is unwrapped if it has the wrapper of daemons before NSQ 1.0."""
    sent = answer({"status_code": 200, "status_txt": "OK", "data": {"a": 1}})
    async with peer({"/x": sent}) as there:
        upstream.set_configured([there.address])
        assert {"a": 1} == await upstream.get(there.address, "/x")


async def test_a_daemon_that_does_not_answer_is_an_error_after_request_seconds() -> None:
    """A daemon that accepts but does not answer is an error after request_seconds."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        while not reader.at_eof():
            await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Upstream(request_seconds=0.1) as upstream:
        upstream.set_configured([address])
        error = await refused(upstream, address)

    assert ("no answer in time", 0) == (error.reason, error.status)


async def test_post_uses_a_new_connection_to_a_restarted_daemon(
    upstream: Upstream, tmp_path: Path
) -> None:
    """``post`` to a restarted daemon succeeds at the first attempt, on a new connection."""
    with await asyncio.to_thread(spawn_nsqd, tmp_path) as nsqd:
        upstream.set_configured([nsqd.http])
        await upstream.get(nsqd.http, "/info")
        await upstream.post(nsqd.http, "/topic/create", topic="one")
        nsqd.restart()  # blocks the loop, which misses the end of the connection
        await upstream.post(nsqd.http, "/topic/create", topic="two")
        assert 2 == len(nsqd.get_json("/stats?format=json")["topics"])


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_daemon_that_requires_tls_is_called_at_its_https_port(
    tmp_path: Path, is_known: bool
) -> None:
    """After NSQ's 403 the daemon is called at its HTTPS port, verified by the given authority."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    both = str(tmp_path / "both.pem")
    context = ssl.create_default_context()
    if is_known:
        authority.configure_trust(context)
    nsqd = await start(tmp_path / "data", tls_cert=both, tls_key=both, tls_required="true")
    address = f"127.0.0.1:{nsqd.http.port}"
    try:
        async with Upstream(tls=context) as upstream:
            upstream.set_configured([address])
            if is_known:
                assert "1.3.0" == (await upstream.get(address, "/info"))["version"]
                await upstream.post(address, "/topic/create", topic="t")
                assert "t" in nsqd.nsqd.broker.topics
            else:
                assert "TLS: " in (await refused(upstream, address, "/info")).reason
    finally:
        await stop(nsqd)
