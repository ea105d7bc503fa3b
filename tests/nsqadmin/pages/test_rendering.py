"""Templates: escaped texts, and the menu for the role of the reader."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from sparq.nsqadmin.access import Identity, Role
from sparq.nsqadmin.pages.rendering import (
    Renderer,
    ago_time,
    as_pattern,
    breakable,
    environment,
    moment_time,
)
from sparq.nsqadmin.words import UNKNOWN

READER = Identity("<i>eve", Role.READ, "token")


def renderer(*, uses_tokens: bool = True) -> Renderer:
    """The renderer of an nsqadmin below `/admin`."""
    services: Any = SimpleNamespace(
        url=lambda path: f"/admin{path}", access=SimpleNamespace(uses_tokens=uses_tokens)
    )
    return Renderer(services)


def refused(who: Identity, *, uses_tokens: bool = True, **facts: str) -> str:
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
    administrator = refused(Identity("", Role.ADMINISTER, "local"))

    assert ("/admin/audit" in reader, "/admin/audit" in administrator) == (False, True)
    assert "This machine may administer." in administrator
    assert all(href.startswith("/admin") for href in re.findall(r'href="(/[^"]*)"', reader))


def test_signing_in_is_offered_if_there_are_tokens() -> None:
    """The link leads back to the requested page; users who have signed in do not see it."""
    nobody = Identity("", Role.NONE, "nobody")
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
