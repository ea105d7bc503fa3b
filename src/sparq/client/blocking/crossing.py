"""Answers that cross threads: given in a program's thread, sent by the session's.

A message is the same `Message` on both sides. Its answer is noted where it is given, so that a
second one is an error there, and takes effect on the session's thread soon after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial

from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.connection import DONE
from sparq.client.message import Message, Responder


class Crossing:
    """A ``Responder`` that passes answers on to the session's thread."""

    __slots__ = ("_responder", "_thread")

    def __init__(self, thread: LoopThread, responder: Responder) -> None:
        self._thread = thread
        self._responder = responder

    @property
    def address(self) -> str:
        """The nsqd's ``host:port``."""
        return self._responder.address

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN."""
        self._thread.post(self._responder.finish, message)
        return DONE

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ."""
        self._thread.post(self._responder.requeue, message, delay, backoff)
        return DONE

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""
        self._thread.post(self._responder.touch, message)
        return DONE


def cross(thread: LoopThread, messages: Sequence[Message]) -> list[Message]:
    """The same messages, to be answered for from any thread."""
    by = partial(Crossing, thread)
    for message in messages:
        message.redirect(by)
    return list(messages)
