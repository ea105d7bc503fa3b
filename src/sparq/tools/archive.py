"""An archive: a recorder for each topic that is given, or that is found and matches a pattern.

1. Topics are looked for again every `topic_refresh`; one that vanishes keeps its recorder, for it
   may come back.
2. A recorder that fails ends all: the others sync and finish what they hold, and the archive ends
   with status 1. nsqd delivers again what was not finished.
3. A topic that was found but can have no file below the folder is told of once, and left to nsqd.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from typing import Final

from sparq.client.pool import background
from sparq.protocol.names import quote
from sparq.tools.command_line import Failed
from sparq.tools.filename import FilenameError
from sparq.tools.progress_line import show_progress
from sparq.tools.recorder import Recorder
from sparq.tools.topics import Topics

log = logging.getLogger(__name__)

MIB: Final = 1 << 20

MakeRecorder = Callable[[str], Recorder]
"""Makes a topic's recorder; raises `FilenameError` for one that can have no file."""


class Archive:
    """Recorders by topic.

    Args:
        topics: what is given.
        found: what else there is; None: nothing else.
        refresh_seconds: between two looks at what there is.
        make_recorder: for a topic.

    Raises:
        FilenameError: a given topic can have no file.
    """

    def __init__(
        self,
        topics: list[str],
        found: Topics | None,
        refresh_seconds: float,
        make_recorder: MakeRecorder,
    ) -> None:
        self._recorders = {topic: make_recorder(topic) for topic in topics}
        self._found = found
        self._refresh_seconds = refresh_seconds
        self._make_recorder = make_recorder
        self._refused: set[str] = set()
        self._running: list[asyncio.Task[None]] = []
        self._status = 0
        self._shown = (0, time.monotonic())

    async def run(self, stop: asyncio.Event) -> int:
        """Record until the event is set or something fails; the exit status."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reopen)
        for recorder in self._recorders.values():
            self._start(recorder, stop)
        beside = [background(show_progress(self.progress), "progress")]
        if self._found is not None:
            beside.append(background(self._look_for_topics(self._found, stop), "topics"))
        await stop.wait()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))
        await asyncio.gather(*self._running)
        return self._status

    def reopen(self) -> None:
        """Have every recorder sync and leave its file."""
        for recorder in self._recorders.values():
            recorder.reopen()

    def progress(self) -> str:
        """How far it has come, for a person; the rate is that since the last time."""
        recorders = self._recorders.values()
        count = sum(recorder.consumer.counters.finished for recorder in recorders)
        size = sum(recorder.output.written_bytes for recorder in recorders)
        files = sum(recorder.output.files for recorder in recorders)
        now = time.monotonic()
        (before, at), self._shown = self._shown, (count, now)
        rate = (count - before) / max(now - at, 0.001)
        return (
            f"topics {len(recorders)}, messages {count:,} ({rate:,.0f}/s), {size / MIB:,.1f} MiB,"
            f" files {files:,}"
        )

    def _start(self, recorder: Recorder, stop: asyncio.Event) -> None:
        self._running.append(asyncio.create_task(self._record(recorder, stop)))

    async def _record(self, recorder: Recorder, stop: asyncio.Event) -> None:
        try:
            await recorder.run()
        except Failed as failure:
            log.critical("%s", failure)
            self._status = 1
        finally:
            stop.set()

    async def _look_for_topics(self, found: Topics, stop: asyncio.Event) -> None:
        while True:
            for topic in await found.known():
                if topic not in self._recorders and topic not in self._refused:
                    self._begin(topic, stop)
            await asyncio.sleep(self._refresh_seconds)

    def _begin(self, topic: str, stop: asyncio.Event) -> None:
        try:
            recorder = self._make_recorder(topic)
        except FilenameError as error:
            log.error("topic %s is not recorded: %s", quote(topic), error)
            self._refused.add(topic)
        else:
            log.info("found topic %s", topic)
            self._recorders[topic] = recorder
            self._start(recorder, stop)
