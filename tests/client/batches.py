"""Helpers that deliver several messages in one read, and read them as batches."""

from sparq.client import Batch, Consumer
from tests.client.scripted import Peer, message_frame


def deliver(peer: Peer, numbers: range, attempts: int = 1) -> None:
    """Send messages in one write, so that they arrive in one read."""
    peer.in_flight.update(b"%016x" % number for number in numbers)
    frames = (message_frame(number, b"body %d" % number, attempts) for number in numbers)
    peer.writer.write(b"".join(frames))


async def first_batch(consumer: Consumer, size: int = 1000, wait: float = 0.1) -> Batch:
    """Return the next batch."""
    async for batch in consumer.batches(size, wait):
        return batch
    raise AssertionError("no batch")


def bodies(numbers: range) -> list[bytes]:
    """Return the bodies of these messages."""
    return [b"body %d" % number for number in numbers]
