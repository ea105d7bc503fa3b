"""client.message: a message accepts one response."""

import pytest

from sparq.client import AlreadyRespondedError, Message
from tests.client.scripted import consuming
from tests.support.waiting import until


async def test_a_message_is_answered_once() -> None:
    """After FIN or REQ every further response raises, and nsqd gets only the first."""
    async with consuming() as (nsqd, peer, consumer):
        peer.deliver(1)
        peer.deliver(2)
        first, second = await anext(consumer), await anext(consumer)
        first.touch()
        first.finish()
        second.requeue(1.5, backoff=False)

        for message in (first, second):
            for answer in (message.finish, message.requeue, message.touch):
                with pytest.raises(AlreadyRespondedError, match=message.id):
                    answer()
        with pytest.raises(ValueError, match="delay_seconds"):
            Message.requeue(second, -1)
        await until(lambda: not peer.in_flight)
        assert nsqd.lines(b"TOUCH", b"FIN", b"REQ") == [
            b"TOUCH 0000000000000001",
            b"FIN 0000000000000001",
            b"REQ 0000000000000002 1500",
        ]
