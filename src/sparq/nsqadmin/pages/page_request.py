"""One request for a page: the sender, the page, and the cluster at that moment.

1. A view is a function from a `PageRequest` to a `PageView`. It serves the whole page and, when
   called again, its live part: the template of a view has a block `live`, which is what a stream
   sends.
2. A view writes the query parameters that it reads into its links, so that every state has a URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from sparq.daemon.access.roles import Role
from sparq.daemon.http import HttpError
from sparq.nsqadmin.access import ACTION_ROLES, Identity
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot


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
    """One request for a page.

    Attributes:
        path: below the base path, not escaped.
        parameters: the parameters in the path.
        query: the parameters in the query, each with one value.
        snapshot: the cluster at the time of the request.
        is_opened: whether the whole page is requested, not only its live part.
    """

    services: Services
    identity: Identity
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    snapshot: ClusterSnapshot
    is_opened: bool = False

    @property
    def rights(self) -> dict[str, bool]:
        """The sender's rights, which decide which buttons the page shows."""
        return {
            "may_operate": self.identity.may(Role.OPERATE),
            "may_administer": self.identity.may(Role.ADMINISTER),
            "may_read": self.identity.may(Role.BODIES),
            "may_publish": self.identity.may(Role.PUBLISH),
            "may_copy": self.identity.may(ACTION_ROLES["copy_message"]),
        }

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
        text = self.query.get(name, "") or str(default)
        is_number = text.isdecimal() and text.isascii() and len(text) < 20
        if not is_number or not low <= int(text) <= high:
            raise HttpError(400, f"{name} must be a number from {low:,} to {high:,}")
        return int(text)


Viewer: TypeAlias = Callable[[PageRequest], Awaitable[PageView]]


def query_text(given: Mapping[str, object]) -> str:
    """Build a query string with its question mark; empty values are left out."""
    kept = {name: str(value) for name, value in given.items() if value not in ("", None)}
    return f"?{urlencode(kept)}" if kept else ""
