"""One look at a page: who asks, for what, and what the cluster was like.

1. A view is a function from a `Look` to a `View`. It serves the whole page and, asked again, the
   live part of it: a view's template has a block `live`, which is what a stream sends.
2. What a view reads of the query it also writes into its links, so that every state has a URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from sparq.daemon.http import HttpError
from sparq.nsqadmin.access import ACTION_ROLES, Identity, Role
from sparq.nsqadmin.watch.picture import Picture

if TYPE_CHECKING:
    from sparq.nsqadmin.pages.services import Services


class View(NamedTuple):
    """What a page shows.

    Attributes:
        template: its file.
        title: of the window; the name of the program is added.
        facts: what the template is given.
        status: of the answer.
        is_live: whether the page keeps itself up to date.
    """

    template: str
    title: str
    facts: Mapping[str, Any]
    status: int = 200
    is_live: bool = True


@dataclass(frozen=True)
class Look:
    """One look at a page.

    Attributes:
        path: below the base path, not escaped.
        parameters: those of the path.
        query: those of the query, each once.
        picture: the cluster when the page was asked for.
    """

    services: Services
    identity: Identity
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    picture: Picture
    ticket: str = field(default="", compare=False)

    def may(self, action: str) -> bool:
        """Whether the reader may do this action, by its name in `ACTION_ROLES`."""
        return self.identity.may(ACTION_ROLES[action])

    @property
    def may_read_bodies(self) -> bool:
        """Whether the reader may see what messages say."""
        return self.identity.may(Role.BODIES)

    def link(self, path: str, **query: object) -> str:
        """A path below the base path, its parts escaped, with a query of what is not empty."""
        return link(self.services.base, path, **query)

    def here(self, **changes: object) -> str:
        """This page with other parameters; an empty one is left out."""
        kept = {**self.query, **{name: str(value) for name, value in changes.items()}}
        return link(self.services.base, quote(self.path, safe="/:[]"), **kept)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A number of the query.

        Raises:
            HttpError: 400, it is none, or out of bounds.
        """
        text = self.query.get(name, "") or str(default)
        if not text.isdecimal() or not low <= int(text) <= high:
            raise HttpError(400, f"{name} must be a number from {low:,} to {high:,}")
        return int(text)


Viewer: TypeAlias = Callable[[Look], Awaitable[View]]


def link(base: str, path: str, **query: object) -> str:
    """A path that is escaped already, below the base path, with a query of what is not empty."""
    wanted = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{base}{path}" + (f"?{urlencode(wanted)}" if wanted else "")


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe=":[]")
