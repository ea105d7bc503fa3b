"""One look at a page: who asks, for what, and what the cluster was like.

1. A view is a function from a `Look` to a `View`. It serves the whole page and, asked again, the
   live part of it: a view's template has a block `live`, which is what a stream sends.
2. What a view reads of the query it also writes into its links, so that every state has a URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from sparq.daemon.http import HttpError
from sparq.nsqadmin.access.roles import Identity, Role
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.watch.picture import Picture


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


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a page.

    Attributes:
        path: below the base path, not escaped.
        parameters: those of the path.
        query: those of the query, each once.
        picture: the cluster when the page was asked for.
        is_opened: whether the whole page is wanted, not only its live part.
    """

    desk: Desk
    identity: Identity
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    picture: Picture
    is_opened: bool = False

    @property
    def rights(self) -> dict[str, bool]:
        """What decides which buttons there are."""
        return {
            "may_operate": self.identity.may(Role.OPERATE),
            "may_administer": self.identity.may(Role.ADMINISTER),
            "may_read": self.identity.may(Role.BODIES),
        }

    def link(self, path: str, **query: object) -> str:
        """A path that is escaped already, below the base path, with a query of what is given."""
        return self.desk.url(path) + query_text(query)

    def here(self, **changes: object) -> str:
        """This page with other parameters; an empty one is left out."""
        return self.link(quote(self.path, safe="/:[]"), **{**self.query, **changes})

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A number of the query.

        Raises:
            HttpError: 400, it is none, or out of bounds.
        """
        text = self.query.get(name, "") or str(default)
        is_number = text.isdecimal() and text.isascii() and len(text) < 20
        if not is_number or not low <= int(text) <= high:
            raise HttpError(400, f"{name} must be a number from {low:,} to {high:,}")
        return int(text)


Viewer: TypeAlias = Callable[[Look], Awaitable[View]]


def query_text(given: Mapping[str, object]) -> str:
    """A query of what is given, with its question mark; what is empty is left out."""
    kept = {name: str(value) for name, value in given.items() if value not in ("", None)}
    return f"?{urlencode(kept)}" if kept else ""
