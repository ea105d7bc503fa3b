"""Graphite through nsqadmin: rates, images, and failures of Graphite."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparq.nsqadmin import graphite as asking
from tests.cluster.peers import answer, peer
from tests.nsqadmin.cluster import admin, free_address

RATE = "/api/graphite?metric=rate&target=sumSeries(a.*)"


def points(*values: Any) -> Any:
    return [{"target": "t", "datapoints": [[value, 1] for value in values]}]


@pytest.mark.parametrize(
    ("graphite_answer", "rate"),
    [
        (points(741.0, 9), "12.35"),
        (points(0), "0.00"),
        (points(-1), "N/A"),
        (points(None), "N/A"),
        (points(), "N/A"),
        ([], "N/A"),
        ([{}], "N/A"),
        ({"a": 1}, "N/A"),
    ],
)
async def test_a_rate_is_the_first_point_per_second(graphite_answer: Any, rate: str) -> None:
    """The first point divided by 60 s; without a usable point `N/A` (NSQ: 500)."""
    async with peer({"/base/render": answer(graphite_answer)}) as graphite:
        url = f"http://{graphite.address}/base"
        async with admin(lookupd_http_addresses=(free_address(),), graphite_url=url) as found:
            assert (200, {"rate": rate}) == await found.ask("GET", RATE)

    asked = "from=-120sec&until=-60sec&format=json&target=sumSeries(a.*)"
    assert [f"GET /base/render?{asked}"] == graphite.asked


@pytest.mark.parametrize(
    "graphite_answer", [answer(b"{"), answer(b"", "500 Bad"), answer(b"[" * 99_999)]
)
async def test_a_failing_graphite_gets_500(graphite_answer: bytes) -> None:
    """An invalid answer, an error status or no Graphite: 500 INTERNAL_ERROR, as with NSQ."""
    error = (500, {"message": "INTERNAL_ERROR"})
    async with peer({"/render": graphite_answer}) as graphite:
        url = f"http://{graphite.address}"
        async with admin(lookupd_http_addresses=(free_address(),), graphite_url=url) as found:
            assert error == await found.ask("GET", RATE)
    async with admin(lookupd_http_addresses=(free_address(),)) as found:
        assert error == await found.ask("GET", RATE)


async def test_a_graphite_that_does_not_answer_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that there was no answer in time, although TimeoutError has no text."""
    monkeypatch.setattr(asking, "SECONDS", 0.1)
    is_over = asyncio.Event()

    async def keep_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with admin(lookupd_http_addresses=(free_address(),), graphite_url=url) as found:
            assert 500 == (await found.ask("GET", RATE))[0]
        is_over.set()

    assert "GRAPHITE: no answer in time" in caplog.messages


async def test_images_pass_through() -> None:
    """The query is passed unchanged, with nsqadmin's password; without the option: 404."""
    image = answer(b"\x89PNG", "200 OK", "Content-Type: image/png")
    async with peer({"/render": image}) as graphite:
        url = f"http://me:secret@{graphite.address}"
        base = {"lookupd_http_addresses": (free_address(),), "graphite_url": url}
        async with admin(**base, proxy_graphite=True) as found:
            status, headers, body = await found.raw("GET", "/render?target=a%26b&width=120")
        async with admin(**base) as found:
            assert 404 == (await found.raw("GET", "/render?target=a"))[0]

    assert (200, "image/png", b"\x89PNG") == (status, headers["Content-Type"], body)
    assert ["GET /render?target=a%26b&width=120"] == graphite.asked
    assert "\r\nAuthorization: Basic bWU6c2VjcmV0\r\n" in graphite.heads[0]


async def test_html_and_redirects_of_graphite_are_defused() -> None:
    """HTML is served as plain text, redirects have no Location; no Graphite: 502."""
    page = answer(b"<script>", "200 OK", "Content-Type: text/html")
    away = answer(b"", "302 Found", "Location: http://127.0.0.1:1/")
    for graphite_answer, status, kind in ((page, 200, "text/plain"), (away, 302, "text/plain")):
        async with peer({"/render": graphite_answer}) as graphite:
            url = f"http://{graphite.address}"
            options = {"graphite_url": url, "proxy_graphite": True}
            async with admin(lookupd_http_addresses=(free_address(),), **options) as found:
                got, headers, _ = await found.raw("GET", "/render")
        assert (status, kind) == (got, headers["Content-Type"].partition(";")[0])
        assert "Location" not in headers
    async with admin(lookupd_http_addresses=(free_address(),), **options) as found:
        assert 502 == (await found.raw("GET", "/render"))[0]
