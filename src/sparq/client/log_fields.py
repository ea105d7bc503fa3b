"""Structured log fields: topic, channel, nsqd and so on as attributes of each log record.

1. Every log line of the client goes to a logger named in docs/observing_clients.md, and has all of
   ``FIELDS`` as attributes of its record; "" if a field does not apply.
2. Topic and channel come from a context variable: a consumer's tasks and connections run in a
   context that sets them (``about``). The other fields are given with the log call.
3. No field contains a secret or a message body.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from sparq.client.message import Message

FIELDS: Final = ("topic", "channel", "nsqd", "nsqlookupd", "message_id", "attempts")

_NONE: Final[Mapping[str, object]] = dict.fromkeys(FIELDS, "")
_context: ContextVar[Mapping[str, object]] = ContextVar("sparq log fields", default=_NONE)


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds fields to log records: the context's, its own, and those given with ``extra``."""

    def __init__(self, name: str, **fields: object) -> None:
        super().__init__(logging.getLogger(name), fields)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the fields."""
        given = kwargs.get("extra") or {}
        return msg, {**kwargs, "extra": {**_context.get(), **(self.extra or {}), **given}}


@contextlib.contextmanager
def about(**fields: str) -> Iterator[None]:
    """Set fields for all log lines of tasks and connections started in this context."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current(field: str) -> str:
    """Return a field of the current context; "" if it is not set."""
    return str(_context.get()[field])


def of_message(message: Message) -> dict[str, object]:
    """Return the fields of a log line about a message."""
    return {"nsqd": message.nsqd, "message_id": message.id, "attempts": message.attempts}
