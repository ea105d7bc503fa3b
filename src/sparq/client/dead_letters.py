"""Dead letters: publish messages that were delivered too often to a topic of their own.

A message is published as a dead letter and finished after nsqd's OK. Without an OK it is requeued.
So it is in at least one of the two topics at any time, and possibly in both for a moment. Dead
letters go to the nsqds that the consumer was given, or that its nsqlookupds list.

In a topic whose name ends with ``.dead``, a dead letter has its history, in the format of sparq's
nsqd (``protocol.dead_letters``), which delivers only the body to consumers. Any other nsqd delivers
both; a ``Consumer`` separates them. In a topic with any other name, a dead letter is the unchanged
body.
"""

from __future__ import annotations

import time

from sparq.client.arguments import check_name
from sparq.client.errors import SparqClientError
from sparq.client.log_fields import FieldLogger, of_message
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.protocol.dead_letters import DeadLetterHistory, is_dead_letter_topic
from sparq.protocol.errors import RemoteError

GIVEN_UP = "given up by the client"
"""The ``reason`` field of such a dead letter."""

log = FieldLogger(__name__)


class DeadLetterPublisher:
    """Publishes dead letters.

    Attributes:
        topic: the topic to publish to.
        published: number of dead letters published.

    Raises:
        ValueError: the topic name is not valid.
    """

    def __init__(
        self, topic: str, producer: Producer, origin: tuple[str, str], consumer: str
    ) -> None:
        """Initialize; ``origin``: the messages' topic and channel; ``consumer``: client's name."""
        check_name("dead_letter topic", topic)
        self._keeps_history = is_dead_letter_topic(topic)
        self._origin, self._consumer = origin, consumer
        self.topic = topic
        self.published = 0
        self._producer = producer

    async def take(self, message: Message) -> None:
        """Publish a message as a dead letter and finish it; requeue it if publishing fails."""
        try:
            await self._producer.publish(self.topic, self._dead_letter_body(message))
        except (SparqClientError, RemoteError) as error:
            text = "publishing a dead letter to %s failed, %r is requeued: %s"
            log.warning(text, self.topic, message, error, extra=of_message(message))
            message.requeue(backoff=False)
            return
        self.published += 1
        await message.finish()

    def _dead_letter_body(self, message: Message) -> bytes:
        if not self._keeps_history:
            return message.body
        topic, channel = self._origin
        history = DeadLetterHistory(
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
