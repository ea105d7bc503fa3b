"""Renders templates: whole pages, their live parts, and the results of actions.

Jinja2 escapes all values. A template that uses an undefined name fails instead of rendering
nothing.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sparq.daemon.access.roles import Role
from sparq.nsqadmin import access as roles
from sparq.nsqadmin.access import Identity
from sparq.nsqadmin.pages import words
from sparq.nsqadmin.pages.assets import Assets
from sparq.nsqadmin.pages.page_request import PageRequest, PageView, query_text
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.attention import channel_link, node_link, topic_link
from sparq.nsqadmin.watch.words import names
from sparq.program.stdout import sparq_version

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", re.ASCII)


HTML: Final = "text/html; charset=utf-8"


def html(text: str, status: int = 200) -> web.Response:
    """An answer that browsers do not store (`site`)."""
    headers = {"Cache-Control": "no-store", "Content-Type": HTML}
    return web.Response(text=text, status=status, headers=headers)


class MenuEntry(NamedTuple):
    """A menu entry; its shortcut is `g` and then `key`; pages below `inside` highlight it."""

    label: str
    path: str
    key: str
    icon: str
    inside: str = ""
    section: str = ""
    needs: Role = Role.READ
    needs_log: bool = False


MENU: Final = (
    MenuEntry("Overview", "/", "o", "overview"),
    MenuEntry("Topics", "/topics", "t", "topics", "/topics"),
    MenuEntry("Channels", "/topics?view=channels", "c", "channels"),
    MenuEntry("Nodes", "/nodes", "n", "nodes", "/nodes"),
    MenuEntry("Messages", "/messages", "m", "messages", "/message", "Messages", needs_log=True),
    MenuEntry("Dead letters", "/dead-letters", "d", "dead", "/dead-letters", needs_log=True),
    MenuEntry("Counter", "/counter", "u", "counter", "/counter", "Cluster"),
    MenuEntry("Policies", "/policies", "p", "policies", "/policies", needs_log=True),
    MenuEntry("Lookup", "/lookup", "l", "lookup", "/lookup"),
    MenuEntry("Audit", "/audit", "a", "audit", "/audit", needs=Role.ADMINISTER),
)


class Renderer:
    """Renders the templates of one nsqadmin."""

    def __init__(self, services: Services, assets: Assets) -> None:
        self.services = services
        self._common: dict[str, Any] = {
            "asset": lambda name: services.url(assets.path(name)),
            "base": services.url(""),
            "version": sparq_version(),
            "link": lambda path, **query: services.url(path) + query_text(query),
            "topic_link": lambda topic: services.url(topic_link(topic)),
            "channel_link": lambda topic, channel: services.url(channel_link(topic, channel)),
            "node_link": lambda address: services.url(node_link(address)),
        }

    def page(self, request: PageRequest, view: PageView, seen: str) -> str:
        """Render a whole page; `seen` is the mark of its live part (`live.mark`)."""
        here = _view_of(request)
        stream = self.services.url(f"/live?view={quote(here, safe='')}&seen={seen}")
        facts = {**self._facts(request, view), **self._frame(request.identity, request)}
        facts |= {"title": view.title, "is_live": view.is_live, "stream": stream}
        return environment().get_template(view.template).render(facts)

    def live(self, request: PageRequest, view: PageView) -> str:
        """Render the live part of a page."""
        template = environment().get_template(view.template)
        facts = self._facts(request, view)
        parts = environment().get_template("parts.html").make_module(facts)
        context = template.new_context({**facts, "parts": parts})
        return "".join(template.blocks["live"](context)).strip()

    def fragment(self, name: str, **facts: object) -> str:
        """Render a template that is a part of a page."""
        return environment().get_template(name).render({**self._common, **facts})

    def alone(self, name: str, identity: Identity, **facts: object) -> str:
        """Render a page without figures of the cluster: an error or the sign-in form."""
        frame = {**self._common, **self._frame(identity, None), "is_live": False}
        return environment().get_template(name).render({**frame, **facts})

    def _facts(self, request: PageRequest, view: PageView) -> dict[str, Any]:
        return {**self._common, "snapshot": request.snapshot, "here": request.here(), **view.facts}

    def _frame(self, identity: Identity, request: PageRequest | None) -> dict[str, Any]:
        shown = [entry for entry in MENU if _is_shown(entry, identity, request)]
        return {
            "menu": [self._entry(entry, request) for entry in shown],
            "who": _user_text(identity),
            "can_sign_in": self.services.access.uses_tokens and identity.via != "token",
            "can_sign_out": identity.via == "token",
        }

    def _entry(self, entry: MenuEntry, request: PageRequest | None) -> dict[str, Any]:
        return {
            **entry._asdict(),
            "href": self.services.url(entry.path),
            "is_here": request is not None and _is_here(entry, request),
        }


@cache
def environment() -> Environment:
    """The Jinja2 environment, created once."""
    made = Environment(
        loader=PackageLoader("sparq.nsqadmin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    own = {
        "as_pattern": as_pattern,
        "breakable": breakable,
        "moment_time": moment_time,
        "clock_time": clock_time,
        "ago_time": ago_time,
    }
    made.filters |= {**words.FILTERS, **own}
    return made


def breakable(name: str) -> Markup:
    """Allow line breaks after the separators in a name, not in the middle of a word."""
    return Markup("<wbr>").join(re.findall(r"[^._/#-]*[._/#-]+|[^._/#-]+", name))


def moment_time(at: float | str | None, zone: str = " UTC") -> Markup:
    """A time as HTML's `<time>`, to which `live.js` adds the local time.

    Args:
        at: seconds since 1970, or a node's text such as `2026-11-23T12:00:00.000Z`.
        zone: added to the text; "" in a column whose heading says UTC.
    """
    return _time(at, zone, 0)


def clock_time(at: float | str | None, zone: str = " UTC") -> Markup:
    """The same without the day."""
    return _time(at, zone, 11)


def ago_time(at: float | None, now: float) -> Markup:
    """A `<time>` that shows how long ago it was; the time itself is its tooltip."""
    text = words.moment(at)
    if text == words.UNKNOWN:
        return escape(text)
    stamp = text.replace(" ", "T")
    return Markup('<time class="ago" datetime="{}Z" title="{} UTC">{}</time>').format(
        stamp, text, words.ago(at, now)
    )


def _time(at: float | str | None, zone: str, begin: int) -> Markup:
    text = at if isinstance(at, str) else words.moment(at)
    if not _MOMENT.fullmatch(text):
        return escape(text or words.UNKNOWN)
    shown, stamp = text[:19].replace("T", " ")[begin:] + zone, text[:19].replace(" ", "T")
    whole = Markup(' title="{}"').format(at) if isinstance(at, str) else ""
    # The style sheet adds the local time: if a line breaks, then before that.
    return Markup('<time datetime="{}Z"{}>{}<wbr></time>').format(stamp, whole, shown)


def as_pattern(name: str) -> str:
    """Build a regular expression for HTML's `pattern` that matches only this name."""
    return re.sub(r"[^A-Za-z0-9_#-]", lambda found: "\\" + found[0], name)


def _view_of(request: PageRequest) -> str:
    """A page's address below the base path, as `/live` expects it."""
    return request.here()[len(request.services.url("")) :]


def _is_shown(entry: MenuEntry, identity: Identity, request: PageRequest | None) -> bool:
    lacks_log = (
        request is not None and bool(request.snapshot.nodes) and not request.snapshot.has_log
    )
    return identity.may(entry.needs) and not (entry.needs_log and lacks_log)


def _is_here(entry: MenuEntry, request: PageRequest) -> bool:
    of_channels = request.path == "/topics" and request.query.get("view") == "channels"
    if entry.path.startswith("/topics"):
        is_below = request.path.startswith(("/topics", "/connection"))
        return is_below and of_channels == ("?" in entry.path)
    if not entry.inside:
        return request.path == entry.path
    return request.path == entry.inside or request.path.startswith((entry.inside + "/", entry.path))


def _user_text(identity: Identity) -> str:
    # The strongest role includes the weaker ones.
    words_of = [word for word in roles.words(identity.roles) if word not in ("bodies", "publish")][
        -1:
    ]
    bodies = ["read bodies"] if identity.may(Role.BODIES) else []
    publish = ["publish"] if identity.may(Role.PUBLISH) else []
    may = names([*words_of, *bodies, *publish]) or "see nothing"
    name = {"local": "This machine"}.get(identity.via, identity.name or "Everybody")
    return f"{name} may {may}."
