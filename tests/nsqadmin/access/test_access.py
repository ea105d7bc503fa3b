"""AdminAccess in a small HTTP server: access control of real requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from sparq.daemon import address
from sparq.daemon.access import tokens
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.http import Call, HttpError, refusal
from sparq.nsqadmin.access import AdminAccess, Role
from sparq.nsqadmin.options import NsqadminOptions

WRITING = Role.OPERATE
HTMX = {"HX-Request": "true"}


class Site(NamedTuple):
    """A server with the routes /read, /write, /config, /ping, /signin and /signout."""

    access: AdminAccess
    audit: AuditLog
    options: NsqadminOptions
    url: str
    client: aiohttp.ClientSession
    done: list[str]
    token: str

    async def ask(self, method: str, path: str, **given: Any) -> tuple[int, Any]:
        async with self.client.request(method, self.url + path, **given) as answer:
            kind = answer.headers.get("Content-Type", "")
            found = await (answer.json() if "json" in kind else answer.text())
            return answer.status, found

    def write_tokens(self, text: str) -> None:
        Path(self.options.token_file).write_text(text)

    async def audited(self) -> list[tuple[str, str, str]]:
        await self.audit.close()
        entries = (await self.audit.page()).entries
        return [(entry["user"], entry["action"], entry["outcome"]) for entry in entries]


@pytest.fixture
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site below `/admin` or a given path, with a token for `deploy` (role operate)."""
    base = str(getattr(request, "param", "/admin"))
    token, line = tokens.make("deploy", "operate")
    path = tmp_path / "tokens"
    path.write_text(line)
    options = NsqadminOptions(token_file=str(path), base_path=base)
    audit = AuditLog(str(tmp_path / "audit"))
    access = AdminAccess(options, audit)
    done: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        path = "/" + request.path.removeprefix(base).lstrip("/")
        if path == "/signin":
            return await access.sign_in(Call(request))
        if path == "/signout":
            return access.sign_out(Call(request))
        if path == "/read":
            access.require(request, Role.READ)
            return web.Response()
        if path == "/ping":
            return web.Response(text="OK")
        if path == "/config":
            access.require_config(request)
        done.append(access.require(request, WRITING).name)
        return web.Response()

    async def respond(request: web.BaseRequest) -> web.Response:
        try:
            return access.check_origin(request) or await answer(request)
        except HttpError as error:
            return refusal(error)

    server = web.Server(respond)
    listener = address.listen("127.0.0.1:0")
    await listener.serve(server)
    url = f"http://127.0.0.1:{listener.port}{base.rstrip('/')}"
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as client:
        yield Site(access, audit, options, url, client, done, token)
    listener.close()
    await server.shutdown()
    await audit.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_gives_its_roles_rights(site: Site) -> None:
    """A token gives its roles' rights; refused writes are in the audit log with their route."""
    assert (401, {"message": "UNAUTHORIZED"}) == await site.ask("POST", "/write")
    assert 401 == (await site.ask("POST", "/write", headers=bearer("x" * 30)))[0]
    assert 401 == (await site.ask("GET", "/read", headers=bearer("x" * 30)))[0]
    assert 200 == (await site.ask("POST", "/write", headers=bearer(site.token)))[0]
    assert 403 == (await site.ask("PUT", "/config", headers=bearer(site.token)))[0]

    assert ["deploy"] == site.done
    assert [
        ("deploy", "PUT /admin/config", "refused"),
        ("", "POST /admin/write", "refused"),
        ("", "POST /admin/write", "refused"),
    ] == await site.audited()


async def test_sighup_reads_the_token_file_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGHUP reads the token file again; an invalid file is logged and changes nothing."""
    right = bearer(site.token)
    site.write_tokens("broken")
    site.access.reload(site.options)
    assert any("keeping the old access rights" in line for line in caplog.messages)
    assert 200 == (await site.ask("GET", "/read", headers=right))[0]

    site.write_tokens("")
    site.access.reload(site.options)
    assert 401 == (await site.ask("GET", "/read", headers=right))[0]
    site.access.reload(replace(site.options, token_file="", allowed_hosts=("evil.example",)))
    answer = await site.ask("GET", "/read", headers={"Host": "evil.example"})
    assert 200 == answer[0]


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

    assert 200 == (await site.ask("POST", "/write", headers=HTMX))[0]
    # The cookie alone is not enough: a form on another site could send it.
    assert 403 == (await site.ask("POST", "/write"))[0]
    assert 204 == (await site.ask("POST", "/signout", headers=HTMX))[0]
    assert 401 == (await site.ask("POST", "/write", headers=HTMX))[0]
    assert ["deploy"] == site.done
    assert ("deploy", "sign_in", "done") in await site.audited()


async def test_signing_out_ends_the_session(site: Site) -> None:
    """After the sign-out, a copy of the cookie gets 401."""
    await site.ask("POST", "/signin", headers=HTMX, data={"token": site.token})
    copied = {cookie.key: cookie.value for cookie in site.client.cookie_jar}
    await site.ask("POST", "/signout", headers=HTMX)
    again = {**HTMX, "Cookie": "; ".join(f"{key}={value}" for key, value in copied.items())}

    assert copied
    assert 401 == (await site.ask("POST", "/write", headers=again))[0]


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
    assert 413 == (await site.ask("POST", "/signin", headers=HTMX, data=b"x" * 9000))[0]


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
        await site.ask("GET", "/read", headers={"X-Forwarded-User": "alice"})

    assert 1 == len([line for line in caplog.messages if "--trusted-proxy" in line])
