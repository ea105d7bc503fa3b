"""Templates: texts are escaped, the menu has what the reader may see."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import UndefinedError

from sparq.nsqadmin.access.roles import Identity, Role
from sparq.nsqadmin.pages.assets import assets
from sparq.nsqadmin.pages.rendering import Renderer, as_pattern, breakable, environment

READER = Identity("<i>eve", Role.READ, "token")


def renderer(*, uses_tokens: bool = True) -> Renderer:
    """The renderer of an nsqadmin below `/admin`."""
    services: Any = SimpleNamespace(
        url=lambda path: f"/admin{path}", access=SimpleNamespace(uses_tokens=uses_tokens)
    )
    return Renderer(services, assets())


def test_texts_are_escaped() -> None:
    """Wherever they come from."""
    page = renderer().error(READER, "Not found", '<script>"', "&hint")

    assert '<script>"' not in page
    assert "&lt;script&gt;" in page
    assert "&amp;hint" in page
    assert "&lt;i&gt;eve may read." in page


def test_the_menu_has_what_the_reader_may_see() -> None:
    """The audit log is for administrators; every link is below the base path."""
    reader = renderer().error(READER, "x", "x", "x")
    administrator = renderer().error(Identity("", Role.ADMINISTER, "local"), "x", "x", "x")

    assert ("/admin/audit" in reader, "/admin/audit" in administrator) == (False, True)
    assert "This machine may administer." in administrator
    assert all(href.startswith("/admin") for href in re.findall(r'href="(/[^"]*)"', reader))


def test_signing_in_is_offered_where_there_are_tokens() -> None:
    """Not to who has signed in already; the page that was wanted comes afterwards."""
    nobody = Identity("", Role.NONE, "nobody")
    offered = "Sign in with a token"

    page = renderer().error(nobody, "Sign in", "x", "x", "/admin/topics?sort=name")
    assert offered in page
    assert "/admin/signin?to=%2Fadmin%2Ftopics%3Fsort%3Dname" in page
    assert offered not in renderer(uses_tokens=False).error(nobody, "x", "x", "x")
    assert offered not in renderer().error(READER, "x", "x", "x")


def test_an_undefined_name_fails() -> None:
    """A page without its figures would look as if there were none."""
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nope }}").render()


def test_names_break_at_their_separators() -> None:
    """And their characters are escaped; a pattern matches the name alone."""
    assert "a.<wbr>b-<wbr>c_<wbr>1#<wbr>ephemeral" == breakable("a.b-c_1#ephemeral")
    assert "a.<wbr>&lt;b&gt;" == breakable("a.<b>")
    assert re.fullmatch(as_pattern("a.b-c_1#e"), "a.b-c_1#e")
    assert not re.fullmatch(as_pattern("a.b"), "axb")
