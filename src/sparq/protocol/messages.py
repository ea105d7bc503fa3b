"""A message as nsqd shows it over HTTP (docs/http.md): written by nsqd, read by nsqadmin and tools.

The bounds hold for what is read: a node's answer is not trusted.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from sparq.options.units import SECOND

UTF8_BYTES_MAX: Final = 4
Digits: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,20}$")]
State: TypeAlias = Annotated[str, Meta(pattern="^(waiting|in_flight|deferred|finished)$")]


def ns_of(text: str) -> int:
    """Parse `2026-11-23T12:00:00.123456789Z` into nanoseconds since 1970.

    Raises:
        ValueError: the text is no such time.
    """
    # The fraction is read by hand: datetime has microseconds only.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND + int(fraction.ljust(9, "0")[:9] or 0)


class MessageClient(Struct):
    """The consumer that has a message in flight."""

    client_id: str
    hostname: str
    remote_address: str
    user_agent: str


class NodeMessage(Struct, kw_only=True):
    """A message in answers; fields that do not apply to it are left out.

    Attributes:
        attempts: how often a channel delivered it; None: unknown, or no channel is named.
        size: bytes of its body.
        body: its beginning, in `encoding` text or base64; `cut`: whether the rest is left out.
        state: its state on the channel; the fields up to `due_seconds` are details of it.
        letter: the history of a dead letter.
        node: the node's address, which nsqadmin and tools add.
    """

    id: str
    index: Digits
    time: str
    timestamp: Digits
    attempts: int | None = None
    size: int
    body: str | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    cut: bool | UnsetType = UNSET
    state: State | UnsetType = UNSET
    client: MessageClient | UnsetType | None = UNSET
    since: str | UnsetType = UNSET
    deadline: str | UnsetType = UNSET
    in_flight_seconds: float | UnsetType = UNSET
    due: str | UnsetType = UNSET
    due_seconds: float | UnsetType = UNSET
    letter: Mapping[str, str] | UnsetType = UNSET
    node: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raises ValueError: `due` is no time."""
        if self.due:
            ns_of(self.due)

    def set_body(self, body: bytes) -> None:
        """Show a body; one that is cut within a UTF-8 character still counts as text."""
        self.cut = len(body) < self.size
        for less in range(UTF8_BYTES_MAX if self.cut else 1):
            try:
                self.body, self.encoding = body[: len(body) - less].decode(), "text"
            except UnicodeDecodeError:
                continue
            return
        self.body, self.encoding = base64.b64encode(body).decode(), "base64"
