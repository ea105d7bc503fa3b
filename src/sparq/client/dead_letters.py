"""Where messages go that were delivered too often: a topic of their own.

A dead letter is published, and the message finished after nsqd's OK; if
there is none, the message is requeued, so that it is in one of the two topics at any time (and
perhaps, for a moment, in both). It goes to the nsqds that the consumer was given, or that its
nsqlookupds know.

In a topic whose name ends with ``.dead`` it is kept with its history, in the form of sparq's nsqd
(``protocol.dead_letters``), which gives consumers the body alone. Another nsqd gives them all of
it; a ``Consumer`` opens it. In a topic of any other name it is the body as it was.
"""

from __future__ import annotations

import time

from sparq.client.arguments import check_name
from sparq.client.errors import SparqClientError
from sparq.client.log_fields import FieldLogger, of_message
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.protocol.dead_letters import History, is_dead_letter_topic
from sparq.protocol.errors import RemoteError

GIVEN_UP = "given up by the client"
"""The reason of such a letter."""

log = FieldLogger(__name__)


class DeadLetters:
    """Publishes dead letters.

    Attributes:
        topic: where to.
        published: how many there were.

    Raises:
        ValueError: the topic's name is not valid.
    """

    def __init__(
        self, topic: str, producer: Producer, origin: tuple[str, str], consumer: str
    ) -> None:
        """`origin` is the topic and the channel of the messages, `consumer` who could not."""
        check_name("dead_letter topic", topic)
        self._keeps_history = is_dead_letter_topic(topic)
        self._origin, self._consumer = origin, consumer
        self.topic = topic
        self.published = 0
        self._producer = producer

    async def take(self, message: Message) -> None:
        """Publish a message's body and finish the message, or requeue it."""
        try:
            await self._producer.publish(self.topic, self._letter(message))
        except (SparqClientError, RemoteError) as error:
            text = "no dead letter in %s, %r is requeued: %s"
            log.warning(text, self.topic, message, error, extra=of_message(message))
            message.requeue(backoff=False)
            return
        self.published += 1
        await message.finish()

    def _letter(self, message: Message) -> bytes:
        if not self._keeps_history:
            return message.body
        topic, channel = self._origin
        history = History(
            topic=topic,
            channel=channel,
            id=message.id,
            attempts=message.attempts,
            published_ns=message.timestamp_ns,
            returned_ns=time.time_ns(),
            consumer=self._consumer,
            reason=GIVEN_UP,
        )
        return history.seal(message.body)

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.close()
