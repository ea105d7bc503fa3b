"""A recorder writes one topic's messages to files, and finishes them when they are on the disk.

1. FIN is sent only for messages that are on the disk. Any error of a file ends the recorder, which
   requeues its messages at once, so that nsqd need not wait for their timeout.
2. It syncs when it holds as many messages as may be in flight, when the consumer is starved (no
   more come before some are finished), every `sync_interval`, before half of a held message's
   timeout is over, when asked to reopen, and at its end.
3. Files are written in other threads, one call at a time: a slow disk does not delay heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sparq.client.batch import Batch
from sparq.client.consumer import Consumer
from sparq.tools.command_line import ToolError
from sparq.tools.filename import FilenameError
from sparq.tools.output import TopicOutput
from sparq.tools.touching import halfway

log = logging.getLogger(__name__)

T = TypeVar("T")
NEVER = float("inf")


class Recorder:
    """One topic's consumer and its files.

    Args:
        consumer: not started yet, without a handler.
        output: where its messages go.
        sync_interval: seconds.
        skip_empty_files: open a file only when there is a message to write.
    """

    def __init__(
        self,
        consumer: Consumer,
        output: TopicOutput,
        *,
        sync_interval: float,
        skip_empty_files: bool,
    ) -> None:
        self.consumer = consumer
        self.output = output
        self._sync_interval = sync_interval
        self._skip_empty_files = skip_empty_files
        self._held: list[Batch] = []
        self._held_count = 0
        self._overdue_at = NEVER
        self._tick_at = NEVER
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._reopening = False
        self._stopping = False

    async def run(self) -> None:
        """Record until stopped.

        Raises:
            ToolError: a file could not be written; only messages on the disk were finished.
        """
        await self._on_disk(self.output.finish_left_over)
        if self._stopping:
            return
        self.consumer.start()
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            async with self._writing:  # a cancelled call would go on running in its thread
                for task in tasks:
                    task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if failures := [each for each in results if isinstance(each, Exception)]:
                raise failures[0]
            await self._on_disk(self.output.close)
        finally:
            for batch in self._held:
                batch.requeue(0, backoff=False)
            await self.consumer.stop(0.0)

    async def stop(self) -> None:
        """Sync and finish the messages received so far, and receive no more."""
        self._stopping = True
        self._woken.set()
        await self.consumer.stop()

    def reopen(self) -> None:
        """Sync, finish messages and close the file, soon; the next message opens the next file."""
        self._reopening = True
        self._woken.set()

    # Messages

    async def _receive(self) -> None:
        size = max(1, self.consumer.max_in_flight)
        async for batch in self.consumer.batches(size, wait=0):
            async with self._writing:
                await self._take(batch)

    async def _take(self, batch: Batch) -> None:
        if not self._held:
            self._overdue_at = halfway(batch)
            if self._overdue_at < self._tick_at:
                self._woken.set()
        self._held.append(batch)
        self._held_count += len(batch)
        sync = self._stopping or self._is_full()
        if await self._on_disk(partial(self.output.write, batch.bodies, sync=sync)):
            await self._finish()

    def _is_full(self) -> bool:
        """Whether no more messages, or few, come before some are finished."""
        return self._held_count >= self.consumer.max_in_flight or self.consumer.is_starved

    async def _finish(self) -> None:
        """Send FIN for all messages held: they are on the disk."""
        held, self._held = self._held, []
        self._held_count, self._overdue_at = 0, NEVER
        for batch in held:
            await batch.finish()

    # Time

    async def _watch(self) -> None:
        self._tick_at = time.monotonic() + self._sync_interval
        while True:
            await self._woken_by(min(self._tick_at, self._overdue_at))
            async with self._writing:
                if (work := self._work_due(time.monotonic())) is not None:
                    await self._on_disk(work)
                    await self._finish()

    def _work_due(self, now: float) -> Callable[[], None] | None:
        """Return the file operation that is due; it leaves all messages held on the disk."""
        if self._reopening:
            self._reopening = False
            return self.output.close
        if now >= self._tick_at:
            self._tick_at = now + self._sync_interval
            return partial(self.output.tick, skip_empty_files=self._skip_empty_files)
        if now >= self._overdue_at or self._stopping:
            return self.output.sync
        return None

    async def _woken_by(self, when: float) -> None:
        """Wait for a wake-up, or until this time of the monotonic clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, when - time.monotonic())):
                await self._woken.wait()
        self._woken.clear()

    async def _on_disk(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread. Raises ToolError: it failed."""
        try:
            return await asyncio.to_thread(call)
        except (OSError, FilenameError) as error:
            place = f"[{self.consumer.topic}/{self.consumer.channel}]"
            where = self.output.shown()
            raise ToolError(
                f"{place} cannot write {where}: {error}; unfinished messages are delivered again"
            ) from error
