"""A batch: messages that are handled, and responded to, together.

1. The cost per message is only that of slicing out its body: ``Message`` objects are made when the
   program accesses one (``batch[0]``, ``for message in batch``).
2. Responding to the batch responds to each message that had no response of its own, once.
3. A failed batch counts as one failure in the backoff, however many messages it has.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import cast, overload

from sparq.client.arguments import check_delay
from sparq.client.connection import DONE
from sparq.client.errors import AlreadyRespondedError
from sparq.client.inbox import size_of
from sparq.client.message import Around, Message, Response
from sparq.client.subscription import ReceivedMessages


class Batch(Sequence[Message]):
    """Messages in the order in which they arrived.

    ``bodies`` is the fastest access to the published bytes. ``finish``, ``requeue`` and ``touch``
    take effect when called, as those of a message do; awaiting the result only applies
    back-pressure, while an nsqd reads too slowly.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_around", "_messages", "_parts", "responded")

    def __init__(self, parts: Iterable[ReceivedMessages | Message]) -> None:
        self.responded = False
        self._parts = list(parts)
        self._messages: list[Message] | None = None
        self._around: Around = nullcontext

    def __len__(self) -> int:
        return size_of(self._parts)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        """Return a message, or a list of messages for a slice."""
        return self._opened()[at]

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages."""
        return iter(self._opened())

    @property
    def bodies(self) -> list[bytes]:
        """The published bytes of each message."""
        found: list[bytes] = []
        for part in self._parts:
            found += part.bodies() if isinstance(part, ReceivedMessages) else (part.body,)
        return found

    @property
    def attempts_max(self) -> int:
        """The highest ``attempts`` of any message; 0 for an empty batch."""
        return max((part.attempts for part in self._parts), default=0)

    @property
    def expires_at(self) -> float:
        """When the first message timeout of the batch ends; monotonic seconds."""
        return min((part.expires_at for part in self._parts), default=math.inf)

    def finish(self) -> Awaitable[None]:
        """Send FIN for each message without a response.

        Raises:
            AlreadyRespondedError: the batch was finished or requeued before.
        """
        self._check()
        return self._answer("finish")

    def requeue(
        self, delay_seconds: float | None = None, *, backoff: bool = True
    ) -> Awaitable[None]:
        """Send REQ for each message without a response, as ``Message.requeue`` does.

        Raises:
            AlreadyRespondedError: the batch was finished or requeued before.
            ValueError: the delay is negative or too long for nsqd.
        """
        if delay_seconds is not None:
            check_delay(delay_seconds)
        self._check()
        return self._answer("requeue", delay_seconds, backoff)

    def touch(self) -> Awaitable[None]:
        """Send TOUCH for each message without a response, as ``Message.touch`` does.

        Raises:
            AlreadyRespondedError: the batch was finished or requeued before.
        """
        self._check()
        return self._answer("touch")

    def observe(self, around: Around) -> None:
        """Respond within ``around("finish")`` or ``around("requeue")`` from now on."""
        self._around = around

    def _check(self) -> None:
        if self.responded:
            raise AlreadyRespondedError("the batch was already finished or requeued")

    def _answer(
        self, kind: Response, delay: float | None = None, backoff: bool = True
    ) -> Awaitable[None]:
        """Respond to each part without a response; the result awaits the slowest connection."""
        is_last = kind != "touch"
        self.responded = is_last
        slow = []
        with self._around(kind) if is_last else nullcontext():
            for part in [each for each in self._parts if not each.responded]:
                part.responded = is_last
                answer = part._respond(part, kind, delay, backoff)
                backoff = False  # a failed batch counts as one failure
                # `gather` would make a task even for each answer that waits for nothing.
                if answer is not DONE:
                    slow.append(answer)
        return cast(Awaitable[None], asyncio.gather(*slow)) if slow else DONE

    def _opened(self) -> list[Message]:
        if self._messages is None:
            messages: list[Message] = []
            for part in self._parts:
                messages += part.open() if isinstance(part, ReceivedMessages) else (part,)
            # Each message now has a response of its own: no group may be answered as one.
            self._parts = list(messages)
            self._messages = messages
        return self._messages

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"
