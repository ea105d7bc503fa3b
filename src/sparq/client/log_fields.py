"""Log lines with fields: what a line is about, for programs that read logs.

1. Every line of the client is written to the logger named for its module (``sparq.client.pool``)
   and has all of ``FIELDS`` as attributes of its record; "" where a line is about no such thing.
2. Topic and channel are known by the context: a consumer's tasks and connections run in one that
   says which (``about``). The rest is given where the line is written.
3. Secrets and bodies are in no field.
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
    """Writes lines with fields: the context's, its own, and those given with ``extra``."""

    def __init__(self, name: str, **fields: object) -> None:
        super().__init__(logging.getLogger(name), fields)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the fields together."""
        given = kwargs.get("extra") or {}
        return msg, {**kwargs, "extra": {**_context.get(), **(self.extra or {}), **given}}


@contextlib.contextmanager
def about(**fields: str) -> Iterator[None]:
    """What is begun within (tasks, connections) has these fields on all its lines."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current(field: str) -> str:
    """What is begun here is about this topic, or channel; "" about none."""
    return str(_context.get()[field])


def of_message(message: Message) -> dict[str, object]:
    """The fields of a line that is about a message."""
    return {"nsqd": message.nsqd, "message_id": message.id, "attempts": message.attempts}
