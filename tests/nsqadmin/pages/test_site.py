"""The routes of pages: rights, headers, and errors as pages or notices."""

from __future__ import annotations

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
