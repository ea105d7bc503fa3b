"""Publishes clicks to the topic: batch by batch over several nsqds, until all are acknowledged.

For the audit it records in two files (`audit.RECORDS`) the hash of each body that nsqd has
acknowledged, and of each that was sent again because a send got no answer.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparq.client import Producer
from sparq.pipeline.report.audit import RECORDS, hashes

BATCH_COUNT, BATCH_BYTES = 500, 1 << 20  # of one MPUB
UNDER_WAY = 8  # batches that wait for their OK at the same time
TIMEOUT_SECONDS = 120.0


@dataclass
class PublishProgress:
    """Numbers of messages acknowledged with OK, and sent again after a send without an answer."""

    acknowledged: int = 0
    resent: int = 0


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log, plain or gzipped, without their ends; empty lines are skipped."""
    with path.open("rb") as plain:
        packed = plain.peek(2)[:2] == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as lines:
        for line in lines:
            if text := line.rstrip(b"\r\n"):
                yield text


def batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group bodies in their order into batches, limited by number and bytes."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) == BATCH_COUNT or size + len(body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


async def publish(
    bodies: Iterable[bytes],
    nsqds: list[str],
    topic: str,
    folder: Path,
    progress: PublishProgress | None = None,
) -> PublishProgress:
    """Publish all bodies to the topic, spread over the nsqds; returns the progress, up to date.

    Raises PublishError: no nsqd accepted a batch within TIMEOUT_SECONDS; RemoteError.
    """
    done = progress or PublishProgress()

    async def send_all() -> None:
        for batch in waiting:
            again = (await producer.multi_publish(topic, batch)).resent
            sent_again.write(hashes(batch) * again if again else b"")
            accepted.write(hashes(batch))
            done.resent += len(batch) * again
            done.acknowledged += len(batch)

    waiting = batches(bodies)
    async with Producer(nsqds, publish_timeout=TIMEOUT_SECONDS) as producer:
        acknowledged, resent = (folder / name for name in RECORDS)
        with acknowledged.open("ab") as accepted, resent.open("ab") as sent_again:
            senders = [asyncio.create_task(send_all()) for _ in range(UNDER_WAY)]
            try:
                await asyncio.gather(*senders)
            finally:
                for sender in senders:
                    sender.cancel()
    return done
