"""A batch: messages that are handled, and answered for, together.

1. It costs per message what cutting out its body costs: messages of their own are made only when
   somebody looks at one (``batch[0]``, ``for message in batch``).
2. Answering for the batch answers for all in it that were not answered for singly, each once.
3. A failed batch is one failure to the backoff, however many messages it has.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import cast, overload

from sparq.client.arguments import check_delay
from sparq.client.connection import DONE
from sparq.client.errors import AlreadyRespondedError
from sparq.client.inbox import size_of
from sparq.client.message import Message
from sparq.client.subscription import Received

Answer = Callable[[Received | Message, bool], Awaitable[None]]
"""Answers for a part of a batch; True for the first part."""


class Batch(Sequence[Message]):
    """Messages in the order in which they arrived.

    ``bodies`` is the fastest way to what was published. ``finish``, ``requeue`` and ``touch`` take
    effect when called, as those of a message do; awaiting the result waits only while an nsqd
    reads too slowly.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_messages", "_parts", "responded")

    def __init__(self, parts: Iterable[Received | Message]) -> None:
        self.responded = False
        self._parts = list(parts)
        self._messages: list[Message] | None = None

    def __len__(self) -> int:
        return size_of(self._parts)

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
        self._check()
        self.responded = True
        return self._answer(lambda part, _is_first: part.finish())

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
        self._check()
        self.responded = True
        return self._answer(
            lambda part, is_first: part.requeue(delay_seconds, backoff=backoff and is_first)
        )

    def touch(self) -> Awaitable[None]:
        """TOUCH for each that was not answered for, as ``Message.touch``.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
        """
        self._check()
        return self._answer(lambda part, _is_first: part.touch())

    def _check(self) -> None:
        if self.responded:
            raise AlreadyRespondedError("the batch was answered for before")

    def _answer(self, answer: Answer) -> Awaitable[None]:
        """Answer for each that was not answered for; what waits for the slowest connection."""
        unanswered = [part for part in self._parts if not part.responded]
        answers = [answer(part, place == 0) for place, part in enumerate(unanswered)]
        slow = [each for each in answers if each is not DONE]
        return cast(Awaitable[None], asyncio.gather(*slow)) if slow else DONE

    def _opened(self) -> list[Message]:
        if self._messages is None:
            messages: list[Message] = []
            for part in self._parts:
                messages += part.open() if isinstance(part, Received) else (part,)
            self._parts = list(messages)
            self._messages = messages
        return self._messages

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"
