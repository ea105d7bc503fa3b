"""Publishes clicks to the topic: batch by batch over several nsqds, until all are acknowledged.

For the audit it records in two files what was acknowledged and what was sent again:

1. `acknowledged` gets the hash of every body that nsqd has acknowledged with OK, once for each time
   it was published.
2. `resent` gets the hash of every body whose publish got no answer and was sent again, once for
   each such send. The logs may hold the body that many times more often, and no other body more
   often than it was published.
3. A batch that no nsqd accepts is tried again for `timeout_seconds`; then publishing ends with an
   error that gives its progress.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sparq.client import Producer, PublishError, RemoteError
from sparq.pipeline.report.audit import hashes

BATCH_COUNT = 500
"""Messages of one MPUB: enough to be cheap, far below the maximum size of a body."""

BATCH_BYTES = 1 << 20
UNDER_WAY = 8
"""Maximum number of batches that wait for their OK at the same time."""

TIMEOUT_SECONDS = 120.0
ATTEMPT_SECONDS = 30.0
RETRY_SECONDS = 0.5
GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class PublishProgress:
    """The progress of publishing.

    Attributes:
        acknowledged: messages that nsqd has acknowledged with OK.
        resent: messages that were sent again after a send without an answer.
    """

    acknowledged: int = 0
    resent: int = 0


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log, plain or gzipped, without their ends; empty lines are skipped.

    Raises:
        OSError: the file cannot be read, or starts like a gzip file but is not one.
    """
    with path.open("rb") as plain:
        packed = plain.peek(2)[:2] == GZIP_MAGIC
    with gzip.open(path) if packed else path.open("rb") as lines:
        for line in lines:
            if text := line.rstrip(b"\r\n"):
                yield text


def batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group bodies in their order into batches, limited by number and bytes."""
    rest = iter(bodies)
    held: list[bytes] = []
    while taken := held + list(islice(rest, BATCH_COUNT - len(held))):
        size = 0
        for count, body in enumerate(taken):
            size += len(body)
            if count and size > BATCH_BYTES:
                break
        else:
            count = len(taken)
        held = taken[count:]
        yield taken[:count]


async def publish(
    bodies: Iterable[bytes],
    nsqds: list[str],
    topic: str,
    *,
    acknowledged: Path,
    resent: Path,
    on_progress: Callable[[PublishProgress], None] = lambda _: None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> PublishProgress:
    """Publish all bodies to the topic, spread over the nsqds.

    Args:
        nsqds: their TCP addresses; while one is away, the others get all messages.
        acknowledged, resent: the files to which the hashes are appended.
        on_progress: called after an acknowledged batch.
        timeout_seconds: how long a batch is tried again while no nsqd accepts it.
    Raises:
        PublishError, RemoteError: a batch was not accepted within that time.
    """
    progress = PublishProgress()

    async def send(batch: list[bytes], kept: BinaryIO, again: BinaryIO) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            failure = None
            try:
                unanswered = (await producer.multi_publish(topic, batch)).resent
            except (PublishError, RemoteError) as error:
                failure, unanswered = error, error.unanswered
            # Every attempt without an answer is recorded, also of a publish that fails: nsqd may
            # have stored the messages each time.
            again.write(hashes(batch) * unanswered if unanswered else b"")
            progress.resent += len(batch) * unanswered
            if failure is None:
                kept.write(hashes(batch))
                progress.acknowledged += len(batch)
                on_progress(progress)
                return
            if asyncio.get_running_loop().time() > deadline:
                raise failure
            await asyncio.sleep(RETRY_SECONDS)

    async def send_all(waiting: Iterator[list[bytes]]) -> None:
        for batch in waiting:
            await send(batch, kept, again)

    waiting = batches(bodies)
    attempt_seconds = min(ATTEMPT_SECONDS, timeout_seconds)
    async with Producer(nsqds, publish_timeout=attempt_seconds) as producer:
        with acknowledged.open("ab") as kept, resent.open("ab") as again:
            senders = [asyncio.create_task(send_all(waiting)) for _ in range(UNDER_WAY)]
            try:
                await asyncio.gather(*senders)
            finally:
                for sender in senders:
                    sender.cancel()
    return progress
