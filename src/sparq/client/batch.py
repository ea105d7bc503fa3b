"""A batch: messages that are handled, and answered for, together.

1. It costs per message what cutting out its body costs: messages of their own are made only when
   somebody looks at one (``batch[0]``, ``for message in batch``).
2. Answering for the batch answers for all in it that were not answered for singly, each once.
3. A failed batch is one failure to the backoff, however many messages it has.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import cast, overload

from sparq.client.connection import DONE
from sparq.client.delays import check_delay
from sparq.client.errors import AlreadyRespondedError
from sparq.client.inbox import size_of
from sparq.client.message import Message
from sparq.client.subscription import Received


class AnyBatch(Sequence[Message]):
    """A batch of either face: its messages are made when somebody looks at one."""

    __slots__ = ("responded",)

    def __init__(self) -> None:
        self.responded = False

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        """A message, or a list of them."""
        return self._opened()[at]

    def __iter__(self) -> Iterator[Message]:
        """The messages one by one."""
        return iter(self._opened())

    @abstractmethod
    def _opened(self) -> list[Message]:
        """The messages."""

    def _check(self) -> None:
        if self.responded:
            raise AlreadyRespondedError("the batch was answered for before")


class Batch(AnyBatch):
    """Messages in the order in which they arrived.

    ``finish``, ``requeue`` and ``touch`` take effect when called, as those of a message do;
    awaiting the result waits only while an nsqd reads too slowly.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_messages", "_parts")

    def __init__(self, parts: Iterable[Received | Message]) -> None:
        super().__init__()
        self._parts = list(parts)
        self._messages: list[Message] | None = None

    def __len__(self) -> int:
        return size_of(self._parts)

    @property
    def bodies(self) -> list[bytes]:
        """The published bytes of each message."""
        found: list[bytes] = []
        for part in self._parts:
            found += part.bodies() if isinstance(part, Received) else (part.body,)
        return found

    @property
    def attempts_max(self) -> int:
        """No message here was delivered more often; 0 for none."""
        return max((part.attempts for part in self._parts), default=0)

    @property
    def expires_at(self) -> float:
        """When nsqd's patience with one of them ends first, on the monotonic clock."""
        return min((part.expires_at for part in self._parts), default=math.inf)

    def finish(self) -> Awaitable[None]:
        """FIN for each that was not answered for.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
        """
        parts = self._unanswered()
        self.responded = True
        return _all([part.finish() for part in parts])

    def requeue(
        self, delay_seconds: float | None = None, *, backoff: bool = True
    ) -> Awaitable[None]:
        """REQ for each that was not answered for, as ``Message.requeue``.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
            ValueError: the delay is negative, or longer than nsqd can count.
        """
        if delay_seconds is not None:
            check_delay(delay_seconds)
        parts = self._unanswered()
        self.responded = True
        return _all(
            [
                part.requeue(delay_seconds, backoff=backoff and place == 0)
                for place, part in enumerate(parts)
            ]
        )

    def touch(self) -> Awaitable[None]:
        """TOUCH for each that was not answered for, as ``Message.touch``.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
        """
        return _all([part.touch() for part in self._unanswered()])

    def _unanswered(self) -> list[Received | Message]:
        self._check()
        return [part for part in self._parts if not part.responded]

    def _opened(self) -> list[Message]:
        if self._messages is None:
            messages: list[Message] = []
            for part in self._parts:
                messages += part.open() if isinstance(part, Received) else (part,)
            self._parts = list(messages)
            self._messages = messages
        return self._messages

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"


def _all(answers: list[Awaitable[None]]) -> Awaitable[None]:
    """What waits for the slowest of the connections that these were sent by."""
    slow = [answer for answer in answers if answer is not DONE]
    return cast(Awaitable[None], asyncio.gather(*slow)) if slow else DONE
