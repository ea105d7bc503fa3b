"""Handlers: how the outcome of a call becomes the answer for a message.

1. FIN when the handler returns, REQ when it raises or returns False; unless it has answered itself,
   or has left the answer to others (``auto_respond``).
2. A handler may be a coroutine function or an ordinary function; a future that it returns, of
   asyncio or of an executor, is waited for. What comes of it, but for False, is nobody's business.
3. A handler in which something was cancelled has failed as one that raises: only who cancels the
   task that runs the handler ends that task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import CoroutineType

from sparq.client.log_fields import FieldLogger, of_message
from sparq.client.message import Message

Handler = Callable[[Message], object]


def require_callable(**given: object) -> None:
    """Hold arguments that are functions, where they are given, to being callable.

    Raises:
        TypeError: one is not.
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function, not {type(value).__name__}")


def name_of(handler: Handler | None) -> str:
    """What a warning calls whoever handles the messages."""
    if handler is None:
        return "the code that iterates over a consumer"
    name = getattr(handler, "__qualname__", repr(handler))
    return f"the handler {getattr(handler, '__module__', '')}.{name}"


async def handle(handler: Handler, message: Message, log: FieldLogger) -> None:
    """Call a handler, and answer for the message by the outcome.

    Raises:
        asyncio.CancelledError: the task that runs this was cancelled; the message is unanswered.
    """
    try:
        result = handler(message)
        if result is not None:
            # A coroutine is sooner known than that something can be awaited.
            result = await (result if isinstance(result, CoroutineType) else _settled(result))
    except (Exception, asyncio.CancelledError) as error:
        # A handler may raise anything: that is how it says that it has failed.
        if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
            raise
        log.exception("handler failed on %r", message, extra=of_message(message))
        result = False
    else:
        if result is False:
            log.warning("handler returned False on %r", message, extra=of_message(message))
    if message.auto_respond and not message.responded:
        await (message.requeue() if result is False else message.finish())


async def _settled(result: object) -> object:
    """What comes of something else than a coroutine that a handler has returned.

    Raises:
        TypeError: it is the body of a function with a ``yield``, of which nothing has run.
    """
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, concurrent.futures.Future):
        return await asyncio.wrap_future(result)
    if isinstance(result, (Generator, AsyncGenerator)):
        raise TypeError("the handler has a yield in it, so that calling it does nothing")
    return result


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
