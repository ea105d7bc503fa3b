"""Where messages go that were delivered too often: a topic of their own.

A dead letter is published with the body as it was, and the message finished after nsqd's OK; if
there is none, the message is requeued, so that it is in one of the two topics at any time (and
perhaps, for a moment, in both). It goes to the nsqds that the consumer was given, or that its
nsqlookupds know.
"""

from __future__ import annotations

from sparq.client.arguments import check_name
from sparq.client.errors import SparqClientError
from sparq.client.log_fields import FieldLogger, of_message
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.protocol.errors import RemoteError

log = FieldLogger(__name__)


class DeadLetters:
    """Publishes dead letters.

    Attributes:
        topic: where to.
        published: how many there were.

    Raises:
        ValueError: the topic's name is not valid.
    """

    def __init__(self, topic: str, producer: Producer) -> None:
        check_name("dead_letter topic", topic)
        self.topic = topic
        self.published = 0
        self._producer = producer

    async def take(self, message: Message) -> None:
        """Publish a message's body and finish the message, or requeue it."""
        try:
            await self._producer.publish(self.topic, message.body)
        except (SparqClientError, RemoteError) as error:
            text = "no dead letter in %s, %r is requeued: %s"
            log.warning(text, self.topic, message, error, extra=of_message(message))
            message.requeue(backoff=False)
            return
        self.published += 1
        await message.finish()

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.close()
