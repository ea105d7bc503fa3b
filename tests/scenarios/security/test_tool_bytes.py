"""to_nsq and nsq_tail treat bodies as bytes, and nsq_to_http verifies HTTPS (D-4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from sparq.tools import nsq_tail, to_nsq
from sparq.tools.commands import parse
from sparq.tools.nsq_to_http import HttpTarget, open_session
from sparq.tools.relay import NotAcceptedError, NotSentError
from sparq.tools.terminal import Input, PipeOutput
from tests.client.certificates import certificates, server_context
from tests.scenarios.security.test_forwarding import HOSTILE
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.tools.forwarding import log_settings_restored, new_topic, publish, received, web_server

BEHIND = b"\x1e"
"""to_nsq's delimiter here, so that a body may contain newlines."""


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """The nsqd that the hostile messages are published on."""
    with spawn_nsqd(tmp_path_factory.mktemp("bytes")) as server:
        yield server


@pytest.mark.security("D-4")
async def test_a_published_record_is_unchanged(nsqd: NsqdServer, tmp_path: Path) -> None:
    """to_nsq splits at the delimiter only, and publishes each record unchanged."""
    topic = new_topic()
    bodies = [body for body in HOSTILE if BEHIND not in body]
    (tmp_path / "records").write_bytes(BEHIND.join(bodies))
    words = (f"--topic={topic}", f"--nsqd-tcp-address={nsqd.tcp}", "--delimiter=\x1e")
    descriptor = os.open(tmp_path / "records", os.O_RDONLY)
    with log_settings_restored():
        options = parse(to_nsq.Options, to_nsq.PROGRAM, words)
        assert 0 == await to_nsq.serve(options, asyncio.Event(), Input(descriptor))
    os.close(descriptor)

    assert bodies == await received(nsqd, topic, len(bodies))


@pytest.mark.security("D-4")
async def test_a_printed_body_is_unchanged(nsqd: NsqdServer, tmp_path: Path) -> None:
    """nsq_tail writes each body unchanged, followed by a newline."""
    topic = new_topic()
    await publish(nsqd, topic, *HOSTILE)
    words = (f"--topic={topic}", f"--nsqd-tcp-address={nsqd.tcp}", f"--n={len(HOSTILE)}")
    descriptor = os.open(tmp_path / "lines", os.O_WRONLY | os.O_CREAT)
    with log_settings_restored():
        options = parse(nsq_tail.Options, nsq_tail.PROGRAM, (*words, "--channel=c"))
        assert 0 == await nsq_tail.serve(options, asyncio.Event(), PipeOutput(descriptor))
    os.close(descriptor)

    assert b"".join(body + b"\n" for body in HOSTILE) == (tmp_path / "lines").read_bytes()


@pytest.mark.security("D-4")
async def test_nothing_is_posted_to_an_untrusted_server(tmp_path: Path) -> None:
    """nsq_to_http refuses invalid certificates, and does not follow a redirect with a body."""
    context = server_context(certificates(tmp_path), certificates(tmp_path).self_signed)
    async with (
        web_server(context) as stranger,
        web_server() as elsewhere,
        web_server() as server,
        open_session(5, 5) as session,
    ):

        async def redirect(_: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": elsewhere.url})

        server.answer = redirect
        with pytest.raises(NotSentError, match="certificate"):
            await HttpTarget("POST", stranger.url, {}).send(session, b"secret")
        with pytest.raises(NotAcceptedError, match="307"):
            await HttpTarget("POST", server.url, {}).send(session, b"secret")

    assert (0, 1, 0) == (len(stranger.asked), len(server.asked), len(elsewhere.asked))
