"""Handlers: call a handler and respond to its message according to the outcome.

1. FIN is sent when the handler returns, REQ when it raises or returns False; neither if the handler
   has responded itself or has turned ``auto_respond`` off.
2. A handler is a coroutine function or an ordinary function. If it returns a future, of asyncio or
   of an executor, that is awaited. Any result but False is ignored.
3. A ``CancelledError`` raised inside a handler is a failure like any other exception. Only a
   cancellation of the task that runs the handler ends that task.
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
    """Check that each argument is callable or None.

    Raises:
        TypeError: one is neither.
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function, not {type(value).__name__}")


def name_of(handler: Handler | None) -> str:
    """Return the name of the message-handling code for warnings."""
    if handler is None:
        return "the code that iterates over a consumer"
    name = getattr(handler, "__qualname__", repr(handler))
    return f"the handler {getattr(handler, '__module__', '')}.{name}"


async def handle(handler: Handler, message: Message, log: FieldLogger) -> None:
    """Call a handler and respond to the message according to the outcome.

    Raises:
        asyncio.CancelledError: the current task was cancelled; no response was sent.
    """
    try:
        result = handler(message)
        if result is not None:
            # Checking for a coroutine is faster than checking for any awaitable.
            result = await (result if isinstance(result, CoroutineType) else _settled(result))
    except (Exception, asyncio.CancelledError) as error:
        # A handler may raise anything: each exception is a failure of that message only.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        log.exception("handler failed on %r", message, extra=of_message(message))
        result = False
    else:
        if result is False:
            log.warning("handler returned False on %r", message, extra=of_message(message))
    if message.auto_respond and not message.responded:
        await (message.requeue() if result is False else message.finish())


async def _settled(result: object) -> object:
    """Await a handler's result if it is a future or another awaitable, and return the outcome.

    Raises:
        TypeError: the result is a generator: the handler has a ``yield``, and nothing of it ran.
    """
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, concurrent.futures.Future):
        return await asyncio.wrap_future(result)
    if isinstance(result, (Generator, AsyncGenerator)):
        raise TypeError(
            "the handler is a generator function (it contains yield), so calling it runs nothing"
        )
    return result
