"""Templates, the menu, links and numbers of a request, and the static files."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from jinja2 import UndefinedError
from markupsafe import escape

import sparq
from sparq.daemon.access.access import UNAUTHORISED
from sparq.daemon.access.rules import Caller, Grant, Role, Via
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.pages.rendering import (
    PageRequest,
    Renderer,
    ago_time,
    as_pattern,
    asset_path,
    breakable,
    environment,
    moment_time,
    query_text,
    serve_asset,
)
from sparq.nsqadmin.words import UNKNOWN


def caller(name: str, role: Role, via: Via) -> Caller:
    """A sender with this role."""
    return Caller(name, via, (Grant(role),), UNAUTHORISED)


READER = caller("<i>eve", Role.READ, "token")


def renderer(*, uses_tokens: bool = True) -> Renderer:
    """The renderer of an nsqadmin below `/admin`."""
    services: Any = SimpleNamespace(
        url=lambda path: f"/admin{path}", access=SimpleNamespace(uses_tokens=uses_tokens)
    )
    return Renderer(services)


def refused(who: Caller, *, uses_tokens: bool = True, **facts: str) -> str:
    """An error page."""
    words = dict.fromkeys(("title", "sentence", "hint"), "x") | {"wanted": ""}
    return renderer(uses_tokens=uses_tokens).alone("error.html", who, **words | facts).text or ""


def test_texts_are_escaped() -> None:
    """Texts, hints and the user's name are escaped."""
    page = refused(READER, sentence='<script>"', hint="&hint")

    assert '<script>"' not in page
    assert "&lt;script&gt;" in page
    assert "&amp;hint" in page
    assert "&lt;i&gt;eve may read." in page


def test_the_menu_has_only_permitted_pages() -> None:
    """Only administrators have a link to the audit log; all links have the base path."""
    reader = refused(READER)
    administrator = refused(caller("", Role.ADMINISTER, "local"))

    assert ("/admin/audit" in reader, "/admin/audit" in administrator) == (False, True)
    assert "This machine may administer." in administrator
    assert all(href.startswith("/admin") for href in re.findall(r'href="(/[^"]*)"', reader))


def test_signing_in_is_offered_if_there_are_tokens() -> None:
    """The link leads back to the requested page; users who have signed in do not see it."""
    nobody = caller("", Role.NONE, "nobody")
    offered = "Sign in with a token"

    page = refused(nobody, wanted="/admin/topics?sort=name")
    assert offered in page
    assert "/admin/signin?to=%2Fadmin%2Ftopics%3Fsort%3Dname" in page
    assert offered not in refused(nobody, uses_tokens=False)
    assert offered not in refused(READER)


def test_times_are_time_elements() -> None:
    """The script adds the local time to <time>; what is no time of UTC stays a text, escaped."""
    at = '<time datetime="2026-11-23T12:00:05Z"'
    seconds = 1_795_435_205.0

    assert f"{at}>2026-11-23 12:00:05 UTC<wbr></time>" == moment_time(seconds)
    assert f"{at}>12:00:05<wbr></time>" == moment_time(seconds, "", 11)
    nodes = "2026-11-23T12:00:05.106243328Z"
    assert f'{at} title="{nodes}">2026-11-23 12:00:05<wbr></time>' == moment_time(nodes, "")
    for text in ("2026-11-23T12:00:05+01:00", "earliest", "<Today>", "2026-11-23"):
        assert escape(text) == moment_time(text)
    unknown = [moment_time(None), moment_time(""), moment_time(-1.0), ago_time(None, 0)]
    assert [UNKNOWN] * 4 == unknown
    assert f'<time class="ago" {at[6:]} title="2026-11-23 12:00:05 UTC">5 s ago</time>' == ago_time(
        seconds, seconds + 5
    )


def test_an_undefined_name_fails() -> None:
    """An undefined name in a template raises UndefinedError instead of rendering nothing."""
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nope }}").render()


def test_names_break_at_their_separators() -> None:
    """Names get <wbr> after separators and are escaped; a pattern matches only the name."""
    assert "a.<wbr>b-<wbr>c_<wbr>1#<wbr>ephemeral" == breakable("a.b-c_1#ephemeral")
    assert "a.<wbr>&lt;b&gt;" == breakable("a.<b>")
    assert re.fullmatch(as_pattern("a.b-c_1#e"), "a.b-c_1#e")
    assert not re.fullmatch(as_pattern("a.b"), "axb")


def page_request(path: str = "/topics", roles: Role = Role.READ, **query: str) -> PageRequest:
    """A request to an nsqadmin below `/admin`."""
    services: Any = SimpleNamespace(url=lambda text: f"/admin{text}")
    nothing: Any = None
    return PageRequest(services, caller("ann", roles, "token"), path, {}, query, nothing)


def test_links_keep_the_state_of_the_page() -> None:
    """Links have the base path and the parameters, changed as given, without empty ones."""
    look = page_request("/topics/a b", sort="-depth", filter="x&y")

    assert "/admin/topics/a%20b?sort=-depth&filter=x%26y" == look.here()
    assert "/admin/topics/a%20b?filter=x%26y&offset=50" == look.here(sort="", offset=50)
    assert "/admin/nodes/[::1]:4151" == page_request("/nodes/[::1]:4151").here()
    assert "/admin/lookup?topic=t" == look.link("/lookup", topic="t", channel=None)
    assert "" == query_text({"a": "", "b": None})
    assert "?n=0" == query_text({"n": 0})


def test_numbers_are_read_within_bounds() -> None:
    """Numbers out of bounds, or not in ASCII digits, get 400 with the bounds."""
    assert 50 == page_request().number("limit", 50, 1, 1000)
    assert 7 == page_request(limit="7").number("limit", 50, 1, 1000)
    for text in ("0", "1001", "-1", "x", "٣", "9" * 20):
        with pytest.raises(HttpError, match="limit must be a number from 1 to 1,000") as error:
            page_request(limit=text).number("limit", 50, 1, 1000)
        assert 400 == error.value.status


def test_rights_decide_which_buttons_are_shown() -> None:
    """`rights` has the buttons that the role permits."""
    rights = page_request(roles=Role.OPERATE).rights
    assert ["may_operate"] == [name for name, is_given in rights.items() if is_given]
    assert not page_request(roles=Role.OPERATE | Role.BODIES).rights["may_copy"]
    assert page_request(roles=Role.OPERATE | Role.BODIES | Role.PUBLISH).rights["may_copy"]
    assert page_request(roles=Role.BODIES).rights["may_read"]


ROOT = Path(__file__).parents[3]
VENDOR = Path(sparq.__file__).parent / "nsqadmin" / "static" / "vendor"
LIST = json.loads((VENDOR / "list.json").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "locks" / "web" / "package-lock.json").read_text(encoding="utf-8"))
MANIFEST = json.loads((ROOT / "locks" / "web" / "package.json").read_text(encoding="utf-8"))


def test_every_file_has_its_listed_checksum() -> None:
    """Each file has the listed sha256, and no unlisted file exists."""
    listed = {name: total for package in LIST for name, total in package["sha256"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "list.json"
    }

    assert listed == found


@pytest.mark.parametrize("package", LIST, ids=lambda package: package["name"])
def test_each_package_matches_the_lock_file(package: dict) -> None:
    """Version, npm's checksum and licence are those in the lock file."""
    locked = LOCK["packages"][f"node_modules/{package['name']}"]

    assert locked["version"] == package["version"] == MANIFEST["dependencies"][package["name"]]
    assert locked["integrity"] == package["npm_integrity"]
    assert locked["license"] == package["license"]
    assert any(name.endswith(".LICENSE.txt") for name in package["sha256"])


def request_file(path: str, **headers: str) -> web.Response:
    """Request a file; return the answer."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    call = Call(make_mocked_request("GET", path, sent))
    call.parameters = {"name": path.partition("?")[0].removeprefix("/static/")}
    return serve_asset(call)


def test_a_file_is_cached_under_its_url_with_hash() -> None:
    """A URL with the right hash is cached for a year; others are revalidated (304)."""
    path = asset_path("icon.svg")
    named, other = request_file(path), request_file("/static/icon.svg?v=old")
    same = request_file("/static/icon.svg", If_None_Match=named.headers["ETag"])

    assert "public, max-age=31536000, immutable" == named.headers["Cache-Control"]
    assert ("no-cache", "image/svg+xml") == (
        *(other.headers["Cache-Control"], other.headers["Content-Type"]),
    )
    assert named.body == other.body
    assert (304, None) == (same.status, same.body)


def test_files_are_compressed_for_clients_that_accept_gzip() -> None:
    """Clients that accept gzip get the same file compressed; Vary keeps caches correct."""
    plain, packed = (
        request_file("/static/icon.svg"),
        request_file("/static/icon.svg", Accept_Encoding="gzip"),
    )

    assert "Content-Encoding" not in plain.headers
    assert "gzip" == packed.headers["Content-Encoding"]
    assert plain.body == gzip.decompress(bytes(packed.body))
    assert "Accept-Encoding" == plain.headers["Vary"]


@pytest.mark.parametrize("name", ["", "list.html", "../options.py", "templates/base.html"])
def test_only_static_files_are_served(name: str) -> None:
    """Names are looked up in a table, not as paths; any other name gets Go's 404, as text."""
    answer = request_file(f"/static/{name}")
    assert (404, "NOT_FOUND", "text/plain") == (answer.status, answer.text, answer.content_type)
