"""Puts clicks into the topic: batch by batch over several nsqds, until each batch is acknowledged.

What was acknowledged is written down, so that the audit can ask for it later:

1. `acknowledged` gets the hash of every body behind an OK, as often as it was published.
2. `resent` gets the hash of every body whose publish had no answer and was sent again, once for
   each such send: the logs may hold it so much oftener, and nothing else oftener than published.
3. A batch that no nsqd takes is tried again until `patience_seconds` are over; then publishing ends
   with an error that says how far it came.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from sparq.client import Producer, PublishError, RemoteError

BATCH_COUNT = 500
"""Messages of one MPUB: large enough to be cheap, far below what a body may hold."""

BATCH_BYTES = 1 << 20
UNDER_WAY = 8
"""Batches that await their OK at a time."""

PATIENCE_SECONDS = 120.0
ATTEMPT_SECONDS = 30.0
RETRY_SECONDS = 0.5
HASH_DTYPE = "<u8"
GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class Published:
    """How far publishing has come.

    Attributes:
        acknowledged: messages behind an OK.
        resent: messages that were sent again after a send without an answer.
        seconds: since the beginning.
    """

    acknowledged: int = 0
    resent: int = 0
    seconds: float = 0.0


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log, plain or gzipped, without their ends; empty lines are none.

    Raises:
        OSError: it cannot be read, or is not the gzip file that it begins as.
    """
    with path.open("rb") as plain:
        packed = plain.peek(2)[:2] == GZIP_MAGIC
    with gzip.open(path) if packed else path.open("rb") as lines:
        for line in lines:
            if text := line.rstrip(b"\r\n"):
                yield text


def batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Bodies in the order given, in batches bounded by number and bytes."""
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


def hashes(bodies: list[bytes]) -> bytes:
    """A hash of each body, as they stand in the audit's files."""
    return np.array([xxhash.xxh3_64_intdigest(body) for body in bodies], HASH_DTYPE).tobytes()


def read_hashes(path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The hashes in one of the audit's files; none where there is no file."""
    return np.fromfile(path, HASH_DTYPE) if path.exists() else np.empty(0, HASH_DTYPE)


class _Publisher:
    """One run of `publish`."""

    def __init__(
        self, producer: Producer, topic: str, files: tuple[BinaryIO, BinaryIO], patience: float
    ) -> None:
        self.progress = Published()
        self._producer = producer
        self._topic = topic
        self._acknowledged, self._resent = files
        self._patience = patience
        self._began = time.monotonic()

    async def send(self, bodies: list[bytes]) -> None:
        """Publish one batch, and write down what became of it."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                receipt = await self._producer.multi_publish(self._topic, bodies)
            except PublishError as error:
                self._note_resent(bodies, error.unanswered)
                failure: Exception = error
            except RemoteError as error:
                failure = error
            else:
                self._note_resent(bodies, receipt.resent)
                self._acknowledged.write(hashes(bodies))
                self.progress.acknowledged += len(bodies)
                self.progress.seconds = time.monotonic() - self._began
                return
            if time.monotonic() > deadline:
                raise failure
            await asyncio.sleep(RETRY_SECONDS)

    def _note_resent(self, bodies: list[bytes], times: int) -> None:
        if times:
            self._resent.write(hashes(bodies) * times)
            self.progress.resent += len(bodies) * times


async def publish(
    bodies: Iterable[bytes],
    nsqds: list[str],
    topic: str,
    *,
    acknowledged: Path,
    resent: Path,
    on_progress: Callable[[Published], None] = lambda _: None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Published:
    """Publish all bodies to the topic, spread over the nsqds.

    Args:
        nsqds: their TCP addresses; while one is away the others take all.
        acknowledged, resent: the files that get the hashes, appended to.
        on_progress: called after each acknowledged batch.
        patience_seconds: how long one batch is tried while no nsqd takes it.
    Raises:
        PublishError, RemoteError: a batch was not taken for so long.
    """
    attempt_seconds = min(ATTEMPT_SECONDS, patience_seconds)
    async with Producer(nsqds, publish_timeout=attempt_seconds) as producer:
        with acknowledged.open("ab") as kept, resent.open("ab") as again:
            run = _Publisher(producer, topic, (kept, again), patience_seconds)
            under_way: set[asyncio.Task[None]] = set()
            try:
                for batch in batches(bodies):
                    under_way.add(asyncio.create_task(run.send(batch)))
                    if len(under_way) >= UNDER_WAY:
                        under_way = await _some_done(under_way)
                        on_progress(run.progress)
                while under_way:
                    under_way = await _some_done(under_way)
                    on_progress(run.progress)
            finally:
                for task in under_way:
                    task.cancel()
    return run.progress


async def _some_done(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest
