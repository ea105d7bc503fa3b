"""Renders pages: what a view gets and returns, the templates with their menu, the static files.

1. A view is a function from a `PageRequest` to a `PageView`. It serves the whole page and, when
   called again, its live part: the template of a view has a block `live`, which is what a stream
   sends.
2. A view writes the query parameters that it reads into its links, so that every state has a URL.
3. Jinja2 escapes all values. A template that uses an undefined name fails instead of rendering
   nothing.
4. Static files are read and compressed once. A file's address has the first digits of its sha256
   (`?v=`), so browsers cache it for a year, and fetch it again when it has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sparq.daemon.access.rules import ADMINS_WORDS, Caller, Role
from sparq.daemon.http import Call, HttpError, accepted_codings
from sparq.nsqadmin import actions, words
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.attention import channel_link, node_link, topic_link
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot
from sparq.protocol import SPARQ_VERSION

# Views


class PageView(NamedTuple):
    """What a page shows.

    Attributes:
        template: its file name.
        title: the window's title; the name of the program is added.
        facts: variables for the template.
        status: the answer's HTTP status.
        is_live: whether the page keeps itself up to date.
    """

    template: str
    title: str
    facts: Mapping[str, Any]
    status: int = 200
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page; its items are the parameters of path and query, "" if missing.

    Attributes:
        path: below the base path, not escaped.
        parameters: the parameters in the path.
        query: the parameters in the query, each with one value.
        snapshot: the cluster at the time of the request.
        is_opened: whether the whole page is requested, not only its live part.
    """

    services: Services
    caller: Caller
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    snapshot: ClusterSnapshot
    is_opened: bool = False

    def __getitem__(self, name: str) -> str:
        return self.parameters.get(name) or self.query.get(name, "")

    @property
    def rights(self) -> dict[str, bool]:
        """The sender's rights, which decide which buttons the page shows."""
        needed = {
            "may_operate": Role.OPERATE,
            "may_administer": Role.ADMINISTER,
            "may_read": Role.BODIES,
            "may_publish": Role.PUBLISH,
            "may_copy": actions.ROLES["copy_message"],
        }
        return {name: self.caller.may(role) for name, role in needed.items()}

    def link(self, path: str, **query: object) -> str:
        """Build a link from an escaped path below the base path, and query parameters."""
        return self.services.url(path) + query_text(query)

    def here(self, **changes: object) -> str:
        """Build a link to this page with changed parameters; empty ones are left out."""
        return self.link(quote(self.path, safe="/:[]"), **{**self.query, **changes})

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Read a number from the query.

        Raises:
            HttpError: 400 if it is not a number, or out of bounds.
        """
        text = self.query.get(name) or str(default)
        is_number = text.isdecimal() and text.isascii() and len(text) < 20
        if not is_number or not low <= int(text) <= high:
            raise HttpError(400, f"{name} must be a number from {low:,} to {high:,}")
        return int(text)


Viewer: TypeAlias = Callable[[PageRequest], Awaitable[PageView]]


def query_text(given: Mapping[str, object]) -> str:
    """Build a query string with its question mark; empty values are left out."""
    kept = {name: str(value) for name, value in given.items() if value not in ("", None)}
    return f"?{urlencode(kept)}" if kept else ""


# Templates


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
    MenuEntry("Topics", "/topics", "t", "topics"),
    MenuEntry("Channels", "/topics?view=channels", "c", "channels"),
    MenuEntry("Nodes", "/nodes", "n", "nodes"),
    MenuEntry("Messages", "/messages", "m", "messages", "/message", "Messages", needs_log=True),
    MenuEntry("Dead letters", "/dead-letters", "d", "dead", needs_log=True),
    MenuEntry("Counter", "/counter", "u", "counter", section="Cluster"),
    MenuEntry("Policies", "/policies", "p", "policies", needs_log=True),
    MenuEntry("Lookup", "/lookup", "l", "lookup"),
    MenuEntry("Audit", "/audit", "a", "audit", needs=Role.ADMINISTER),
)


class Renderer:
    """Renders the templates of one nsqadmin."""

    def __init__(self, services: Services) -> None:
        self.services = services
        base = services.url("")
        self._common: dict[str, Any] = {
            "asset": lambda name: base + asset_path(name),
            "base": base,
            "version": SPARQ_VERSION,
            "link": lambda path, **query: base + path + query_text(query),
            "topic_link": lambda topic: base + topic_link(topic),
            "channel_link": lambda topic, channel: base + channel_link(topic, channel),
            "node_link": lambda address: base + node_link(address),
        }

    def page(self, request: PageRequest, view: PageView, seen: str) -> str:
        """Render a whole page; `seen` is the mark of its live part."""
        here = quote(request.here().removeprefix(self.services.url("")), safe="")
        facts = {**self._facts(request, view), **self._frame(request.caller, request)}
        facts |= {"title": view.title, "is_live": view.is_live}
        facts["stream"] = self.services.url(f"/live?view={here}&seen={seen}")
        return environment().get_template(view.template).render(facts)

    def live(self, request: PageRequest, view: PageView) -> str:
        """Render the live part of a page."""
        template = environment().get_template(view.template)
        facts = self._facts(request, view)
        parts = environment().get_template("parts.html").make_module(facts)
        context = template.new_context({**facts, "parts": parts})
        return "".join(template.blocks["live"](context)).strip()

    def fragment(self, name: str, status: int = 200, /, **facts: object) -> web.Response:
        """Answer with a template that is a part of a page."""
        return html(environment().get_template(name).render({**self._common, **facts}), status)

    def alone(
        self, name: str, caller: Caller, status: int = 200, /, **facts: object
    ) -> web.Response:
        """Answer with a page without figures of the cluster: an error or the sign-in form."""
        return self.fragment(name, status, **self._frame(caller, None), is_live=False, **facts)

    def _facts(self, request: PageRequest, view: PageView) -> dict[str, Any]:
        """The variables of every page, and those of its view."""
        of = {"topic": request["topic"], "channel": request["channel"], **request.rights}
        now = {"request": request, "snapshot": request.snapshot, "here": request.here()}
        return {**self._common, **of, **now, **view.facts}

    def _frame(self, caller: Caller, request: PageRequest | None) -> dict[str, Any]:
        """The variables of the menu and the account."""
        lacks_log = request and request.snapshot.nodes and not request.snapshot.has_log
        return {
            "menu": [
                {
                    **entry._asdict(),
                    "href": self.services.url(entry.path),
                    "is_here": request is not None and _is_here(entry, request),
                }
                for entry in MENU
                if caller.may(entry.needs) and not (entry.needs_log and lacks_log)
            ],
            "who": _user_text(caller),
            "can_sign_in": self.services.access.uses_tokens and caller.via != "token",
            "can_sign_out": caller.via == "token",
        }


def html(text: str, status: int = 200) -> web.Response:
    """An answer that browsers do not store (`site`)."""
    headers = {"Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}
    return web.Response(text=text, status=status, headers=headers)


def _is_here(entry: MenuEntry, request: PageRequest) -> bool:
    """Whether a menu entry is that of the page."""
    path = request.path
    if entry.path.startswith("/topics"):
        of_channels = path == "/topics" and request["view"] == "channels"
        return path.startswith(("/topics", "/connection")) and of_channels == ("?" in entry.path)
    is_below = entry.path != "/" and path.startswith(entry.inside or entry.path)
    return is_below or path == entry.path


def _user_text(caller: Caller) -> str:
    # The strongest role includes the weaker ones.
    levels = ("read", "operate", "administer")
    own = [word for word in levels if caller.may(ADMINS_WORDS[word])]
    bodies = ["read bodies"] if caller.may(Role.BODIES) else []
    publish = ["publish"] if caller.may(Role.PUBLISH) else []
    may = words.names([*own[-1:], *bodies, *publish]) or "see nothing"
    name = "This machine" if caller.via == "local" else caller.name or "Everybody"
    return f"{name} may {may}."


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
    made.filters |= {
        **words.FILTERS,
        "as_pattern": as_pattern,
        "breakable": breakable,
        "moment_time": moment_time,
        "clock_time": partial(moment_time, begin=11),
        "ago_time": ago_time,
    }
    return made


def breakable(name: str) -> Markup:
    """Allow line breaks after the separators in a name, not in the middle of a word."""
    return Markup("<wbr>").join(re.findall(r"[^._/#-]*[._/#-]+|[^._/#-]+", name))


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", re.ASCII)


def moment_time(at: float | str | None, zone: str = " UTC", begin: int = 0) -> Markup:
    """A time as HTML's `<time>`, to which `live.js` adds the local time.

    Args:
        at: seconds since 1970, or a node's text such as `2026-11-23T12:00:00.000Z`.
        zone: added to the text; "" in a column whose heading says UTC.
        begin: 11: without the day.
    """
    text = at if isinstance(at, str) else words.moment(at)
    if not _MOMENT.fullmatch(text):
        return escape(text or words.UNKNOWN)
    shown, stamp = text[:19].replace("T", " ")[begin:] + zone, text[:19].replace(" ", "T")
    whole = Markup(' title="{}"').format(at) if isinstance(at, str) else ""
    # The style sheet adds the local time: if a line breaks, then before that.
    return Markup('<time datetime="{}Z"{}>{}<wbr></time>').format(stamp, whole, shown)


def ago_time(at: float | None, now: float) -> Markup:
    """A `<time>` that shows how long ago it was; the time itself is its tooltip."""
    text = words.moment(at)
    if text == words.UNKNOWN:
        return escape(text)
    tag = Markup('<time class="ago" datetime="{}Z" title="{} UTC">{}</time>')
    return tag.format(text.replace(" ", "T"), text, words.ago(at, now))


def as_pattern(name: str) -> str:
    """Build a regular expression for HTML's `pattern` that matches only this name."""
    return re.sub(r"([^A-Za-z0-9_#-])", r"\\\1", name)


# Static files

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}


class Asset(NamedTuple):
    """One file; `version` is the start of its sha256."""

    body: bytes
    compressed: bytes
    content_type: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    """The static files by name, loaded once."""
    found = {}
    for folder in ("static", "static/vendor"):
        for file in files("sparq.nsqadmin").joinpath(*folder.split("/")).iterdir():
            kind = TYPES.get("." + file.name.rpartition(".")[2])
            if file.is_file() and kind:
                body = file.read_bytes()
                # mtime=0: the same file has the same bytes in every process.
                packed = gzip.compress(body, 9, mtime=0)
                version = hashlib.sha256(body).hexdigest()[:12]
                found[file.name] = Asset(body, packed, kind, version)
    return found


def asset_path(name: str) -> str:
    """Path of a file, below the base path, with its hash."""
    return f"/static/{name}?v={assets()[name].version}"


def serve_asset(call: Call, name: str = "") -> web.Response:
    """Answer a request for the file `name`; "": the file named in the path.

    Without a file of this name, the answer is Go's: 404 and its code as text.
    """
    asset = assets().get(name or call.parameters["name"])
    if asset is None:
        return web.Response(status=404, text="NOT_FOUND")
    is_named = call.query.get("v") == asset.version
    headers = {
        "Content-Type": asset.content_type,
        "Cache-Control": "public, max-age=31536000, immutable" if is_named else "no-cache",
        "ETag": f'"{asset.version}"',
        "Vary": "Accept-Encoding",
    }
    if call.request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    if "gzip" not in accepted_codings(call.request.headers.get("Accept-Encoding", "")):
        return web.Response(body=asset.body, headers=headers)
    return web.Response(body=asset.compressed, headers=headers | {"Content-Encoding": "gzip"})
