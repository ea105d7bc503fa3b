"""The routes of pages: headers, errors as pages or notices, and streams of live parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from sparq.nsqadmin.pages.site import AGAIN_MILLISECONDS, POLL_MILLISECONDS, STREAMS_MAX, mark
from tests.nsqadmin.pages.conftest import Site, words


async def test_pages_are_not_cached(site: Site) -> None:
    """Pages have Cache-Control: no-store: they age, and not everyone may see them."""
    headers = {"Authorization": f"Bearer {site.tokens['ann']}", "Accept": "text/html"}
    url = f"http://127.0.0.1:{site.admin.http_port}"
    for path, status in (("/", 200), ("/topics/none", 404), ("/nodes?sort=colour", 400)):
        async with site.session.get(f"{url}{path}", headers=headers) as answer:
            assert status == answer.status
            assert "no-store" == answer.headers["Cache-Control"]
            assert "text/html; charset=utf-8" == answer.headers["Content-Type"]


async def test_a_refused_form_is_a_notice_on_its_page(site: Site) -> None:
    """A refused form gets the status and a notice with a sentence, not a whole page."""
    status, result = await site.ask("POST", "/topics/t", {"action": "explode"})

    assert (400, False) == (status, "<html" in result)
    assert "There is no such action." in words(result)


async def test_the_401_page_links_to_the_sign_in_form(site: Site) -> None:
    """The 401 page has a link to the form, which leads back to the requested page."""
    url = f"http://127.0.0.1:{site.admin.http_port}"
    async with site.session.get(f"{url}/audit?topic=t", headers={"Accept": "text/html"}) as answer:
        assert 401 == answer.status
        assert "/signin?to=%2Faudit%3Ftopic%3Dt" in await answer.text()
    async with site.session.get(f"{url}/signin?to=/audit") as answer:
        assert (200, True) == (answer.status, '"/signin?to=%2Faudit"' in await answer.text())


@asynccontextmanager
async def stream(
    site: Site, view: str, browser: str, *, token: str = "ann", seen: str = ""
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Open the event stream of a page in a tab of a browser."""
    headers = {
        "Authorization": f"Bearer {site.tokens[token]}",
        "Cookie": f"nsqadmin_tabs={browser}",
        "Last-Event-ID": seen,
    }
    url = f"http://127.0.0.1:{site.admin.http_port}/live"
    async with site.session.get(url, params={"view": view}, headers=headers) as answer:
        yield answer


async def event(answer: aiohttp.ClientResponse) -> list[str]:
    """Read the lines of the next event."""
    lines = []
    while line := (await answer.content.readline()).decode().rstrip("\n"):
        lines.append(line)
    return lines


async def test_streams_of_a_browser_are_limited(site: Site) -> None:
    """Tabs beyond STREAMS_MAX poll: their answers end after one event. Others still stream."""
    async with AsyncExitStack() as stack:
        for _ in range(STREAMS_MAX):
            answer = await stack.enter_async_context(stream(site, "/nodes", "one"))
            assert f"retry: {AGAIN_MILLISECONDS}" in await event(answer)
        extra = await stack.enter_async_context(stream(site, "/nodes", "one"))
        assert f"retry: {POLL_MILLISECONDS}" in (await extra.text()).splitlines()
        other = await stack.enter_async_context(stream(site, "/nodes", "two"))
        assert f"retry: {AGAIN_MILLISECONDS}" in await event(other)


async def test_an_unchanged_part_is_not_sent_again(site: Site) -> None:
    """If Last-Event-ID has the mark of the current part, the event is just `same`."""
    async with stream(site, "/lookup", "a") as answer:
        first = await event(answer)
        part = "\n".join(line[6:] for line in first if line.startswith("data: "))
        assert f"id: {mark(part)}" == first[0]
        assert "None is configured" in part
    async with stream(site, "/lookup", "a", seen=mark(part)) as answer:
        assert "event: same" == (await event(answer))[0]
    async with stream(site, "/lookup", "a", seen="other") as answer:
        assert first[0] == (await event(answer))[0]


async def test_a_stream_needs_the_right_of_its_page(site: Site) -> None:
    """A stream needs an existing page and its role; for an unknown node it sends a notice."""
    for view, token, status in (
        ("/audit", "op", 403),
        ("/nope", "ann", 404),
        ("", "ann", 404),
        ("/topics?view=channels", "eve", 200),
    ):
        async with stream(site, view, "a", token=token) as answer:
            assert status == answer.status, view
    async with stream(site, "/nodes/127.0.0.1:1", "a") as answer:
        assert "This can no longer be shown: NODE_NOT_FOUND." in "\n".join(await event(answer))
