"""Access control of requests to a running nsqadmin: tokens, signing in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from sparq.daemon.access import tokens
from sparq.nsqadmin.access import AdminAccess
from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from tests.nsqadmin.cluster import free_address

HTMX = {"HX-Request": "true"}
READ = "/api/v2/attention"
WRITE = "/api/v2/nodes/unknown:1/dismiss"
"""It needs the role operate; with it the answer is 404: there is no such node."""


class Site(NamedTuple):
    """An nsqadmin below `url` with one token, and a client with cookies."""

    admin: Nsqadmin
    url: str
    client: aiohttp.ClientSession
    token: str

    @property
    def access(self) -> AdminAccess:
        return self.admin.services.access

    @property
    def options(self) -> NsqadminOptions:
        return self.admin.services.options

    def reload(self, tokens: str, **changes: Any) -> None:
        """Write the token file, and reload the rights with changed options."""
        Path(self.options.token_file).write_text(tokens)
        self.access.reload(replace(self.options, **changes))

    async def ask(self, method: str, path: str, **given: Any) -> int:
        async with self.client.request(method, self.url + path, **given) as answer:
            return answer.status

    async def audited(self) -> list[tuple[str, str, str]]:
        await self.admin.services.audit.close()
        entries = (await self.admin.services.audit.page()).entries
        return [(entry["user"], entry["action"], entry["outcome"]) for entry in entries]


@pytest.fixture
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site below `/admin` or a given path, with a token for `deploy` (role operate)."""
    base = str(getattr(request, "param", "/admin"))
    token, line = tokens.make("deploy", "operate")
    path = tmp_path / "tokens"
    path.write_text(line)
    options = NsqadminOptions(
        http_address="127.0.0.1:0",
        nsqd_http_addresses=(free_address(),),
        token_file=str(path),
        base_path=base,
        default_role="none",
    )
    admin = Nsqadmin(options)
    await admin.start()
    url = f"http://127.0.0.1:{admin.http_port}{base.rstrip('/')}"
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as client:
        yield Site(admin, url, client, token)
    await admin.stop()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_gives_its_roles_rights(site: Site) -> None:
    """A token gives its roles' rights; refused writes are in the audit log with their route."""
    assert 401 == await site.ask("POST", WRITE)
    assert 401 == await site.ask("POST", WRITE, headers=bearer("x" * 30))
    assert 401 == await site.ask("GET", READ, headers=bearer("x" * 30))
    assert 404 == await site.ask("POST", WRITE, headers=bearer(site.token))
    assert 403 == await site.ask("PUT", "/config/log_level", headers=bearer(site.token))

    assert [
        ("deploy", "PUT /admin/config/log_level", "refused"),
        *[("", f"POST /admin{WRITE}", "refused")] * 2,
    ] == await site.audited()


async def test_sighup_reads_the_token_file_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGHUP reads the token file again; an invalid file is logged and changes nothing."""
    right = bearer(site.token)
    site.reload("broken")
    assert any("keeping the old access rights" in line for line in caplog.messages)
    assert 200 == await site.ask("GET", READ, headers=right)

    site.reload("")
    assert 401 == await site.ask("GET", READ, headers=right)
    site.reload("", token_file="", default_role="read", allowed_hosts=("evil.example",))
    assert 200 == await site.ask("GET", READ, headers={"Host": "evil.example"})


@pytest.mark.parametrize("form", ["data", "json"])
async def test_signing_in_sets_a_session_cookie(site: Site, form: str) -> None:
    """The session cookie is HttpOnly and SameSite=Strict, and does not contain the token."""
    shown: dict[str, Any] = {form: {"token": site.token}}
    async with site.client.post(site.url + "/signin", headers=HTMX, **shown) as answer:
        cookie = answer.headers["Set-Cookie"]
        status = answer.status, answer.headers["HX-Redirect"]
    assert (204, "/admin/") == status
    assert site.token not in cookie
    words = {word.strip().partition("=")[0].lower() for word in cookie.split(";")}
    assert {"httponly", "samesite", "path", "max-age"} <= words
    assert "SameSite=Strict" in cookie
    assert "Path=/admin" in cookie
    assert "Secure" not in cookie

    assert 404 == await site.ask("POST", WRITE, headers=HTMX)
    # The cookie alone is not enough: a form on another site could send it.
    assert 403 == await site.ask("POST", WRITE)
    assert 204 == await site.ask("POST", "/signout", headers=HTMX)
    assert 401 == await site.ask("POST", WRITE, headers=HTMX)
    assert ("deploy", "sign_in", "done") in await site.audited()


async def test_signing_out_ends_the_session(site: Site) -> None:
    """After the sign-out, a copy of the cookie gets 401."""
    await site.ask("POST", "/signin", headers=HTMX, data={"token": site.token})
    copied = {cookie.key: cookie.value for cookie in site.client.cookie_jar}
    await site.ask("POST", "/signout", headers=HTMX)
    again = {**HTMX, "Cookie": "; ".join(f"{key}={value}" for key, value in copied.items())}

    assert copied
    assert 401 == await site.ask("POST", WRITE, headers=again)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data": b"token=" + b"x" * 40},
        {"data": b"\xff"},
        {"data": b"&" * 5000},
        {"data": {"token": ""}},
        {"json": []},
        {"json": {"token": ["x"]}},
        {"json": {"token": None}},
        {"data": b"[" * 5000, "headers": {"Content-Type": "application/json"}},
    ],
)
async def test_invalid_tokens_do_not_sign_in(site: Site, given: dict[str, Any]) -> None:
    """Malformed, wrong or empty tokens get 401; a body of 9,000 bytes gets 413."""
    headers = {**HTMX, **given.pop("headers", {})}
    async with site.client.post(site.url + "/signin", headers=headers, **given) as answer:
        assert 401 == answer.status
        assert "Set-Cookie" not in answer.headers

    assert [("", "POST /admin/signin", "refused")] == await site.audited()
    assert 413 == await site.ask("POST", "/signin", headers=HTMX, data=b"x" * 9000)


@pytest.mark.parametrize(
    ("site", "to", "found"),
    [
        ("/admin", "/admin/topics?sort=-depth", "/admin/topics?sort=-depth"),
        ("/admin", "http://evil.example/", "/admin/"),
        ("/admin", "//evil.example/admin/", "/admin/"),
        ("/admin", "/\\evil.example", "/admin/"),
        ("/admin", "/admin/\\evil.example", "/admin/"),
        ("/admin", "/elsewhere", "/admin/"),
        ("/admin", "/admin/\r\nX: y", "/admin/"),
        ("/", "/topics/a?b=c", "/topics/a?b=c"),
        ("/", "//evil.example", "/"),
        ("/", "/\\evil.example", "/"),
    ],
    indirect=["site"],
)
async def test_signing_in_redirects_only_to_own_pages(site: Site, to: str, found: str) -> None:
    """A link to the form must not redirect a signed-in user to another site."""
    given = {"headers": HTMX, "data": {"token": site.token}, "params": {"to": to}}
    async with site.client.post(site.url + "/signin", **given) as answer:
        assert found == answer.headers["HX-Redirect"]


async def test_the_cookie_is_secure_if_a_proxy_reports_https(site: Site) -> None:
    """The cookie is Secure if a trusted proxy reports HTTPS in X-Forwarded-Proto."""
    headers = {**HTMX, "X-Forwarded-Proto": "https"}
    given = {"headers": headers, "data": {"token": site.token}}
    async with site.client.post(site.url + "/signin", **given) as answer:
        assert "Secure" in answer.headers["Set-Cookie"]
    site.access.reload(replace(site.options, trusted_proxies=("none",)))
    async with site.client.post(site.url + "/signin", **given) as answer:
        assert "Secure" not in answer.headers["Set-Cookie"], "anybody may say so"


async def test_an_ignored_users_header_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names --trusted-proxy, once, so that requests cannot fill the disk."""
    site.access.reload(replace(site.options, trusted_proxies=("none",)))
    for _ in range(5):
        await site.ask("GET", READ, headers={"X-Forwarded-User": "alice"})

    assert 1 == len([line for line in caplog.messages if "--trusted-proxy" in line])
