"""The program `nsq_to_file`: writes topics to files, one message per line; rotates and compresses.

It has the flags of NSQ's `nsq_to_file`, and differs from it where that loses or mixes up messages:

1. A message is finished when its bytes, and the name of the file that has them, are on the disk.
   No message is dropped for having too many attempts, unless `--consumer-opt=max_attempts,N` asks
   for it. A kill can leave messages in a file twice, and one of them torn: on a line of its own, or
   in the last member of a gzip file.
2. No file is outside `--output-dir` or `--work-dir`, whatever the topics and the other flags are,
   and no symbolic link below these folders is followed.
3. Files that a killed run has left in `--work-dir` are moved to `--output-dir` at the next start;
   so only sparq's `nsq_to_file` may use that folder, in any number of processes.
4. With `--topic-pattern` all nsqlookupds are asked for topics at the start and then every
   `--topic-refresh`. One that fails only loses its own answer, and is logged when it begins to
   fail.

If writing one topic fails, the program ends: the others sync and finish their messages. A topic
that `--topic-pattern` found and that can have no file below the folder is logged once, and its
messages stay in nsqd.

SIGHUP: sync, finish messages and close the files. SIGINT and SIGTERM: the same, then exit status 0.
A file that cannot be written ends the program with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import aiohttp

from sparq.client.lookup import NsqlookupdClient
from sparq.client.pool import background
from sparq.client.subscription import Batch
from sparq.options.units import SECOND
from sparq.program.logging import set_up
from sparq.protocol.lookup import names, question, shown
from sparq.protocol.names import quote
from sparq.protocol.patterns import Pattern, PatternError
from sparq.tools import common
from sparq.tools.commands import NsqToFileOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.files import FilenameError, Folder, TopicOutput, template
from sparq.tools.terminal import progress_shown

PROGRAM: Final = "nsq_to_file"

log = logging.getLogger(__name__)

T = TypeVar("T")

MIB: Final = 1 << 20
NEVER: Final = float("inf")


def start(options: Options) -> int:
    """Run the program; return the exit status."""

    async def work(stop: asyncio.Event) -> int:
        check(options)
        set_up(options.log_prefix, options.log_level)
        return await Archive(options).run(stop)

    return common.run(PROGRAM, work, (signal.SIGINT, signal.SIGTERM))


def check(options: Options) -> None:
    """Check the options. Raises UsageError: one is not valid; the text names the flag."""
    if not options.channel:
        raise UsageError("--channel is required")
    common.check_sources(options)
    common.check_positive(
        options,
        *("topic_refresh_ns", "sync_interval_ns"),
        *("http_client_connect_timeout_ns", "http_client_request_timeout_ns"),
    )
    for flag, value in (("size", options.rotate_size), ("interval", options.rotate_interval_ns)):
        if value < 0:
            raise UsageError(f"--rotate-{flag} should not be negative")
    if not 1 <= options.gzip_level <= 9:
        raise UsageError(f"invalid --gzip-level value ({options.gzip_level}), should be 1-9")
    if not options.topics and not options.topic_pattern:
        raise UsageError("--topic or --topic-pattern required")
    if not options.topics and not options.lookupd_http_addresses:
        raise UsageError("--lookupd-http-address must be specified when no --topic specified")
    common.check_names(options.topics, options.channel)
    common.consumer_config(PROGRAM, options)


class Archive:
    """Recorders by topic: of the given topics, or of topics found that match the pattern.

    Topics are looked up again every `--topic-refresh`; a topic that vanishes keeps its recorder,
    because it may come back.

    Args:
        options: checked.

    Raises:
        UsageError: an option is not valid; the text names the flag.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        try:
            self._pattern = Pattern(options.topic_pattern)
        except PatternError as error:
            raise UsageError(f"--topic-pattern {quote(options.topic_pattern)}: {error}") from None
        self._work, self._finished = _folder("output-dir", options.output_dir), None
        if options.work_dir and os.path.realpath(options.work_dir) != self._work.path:
            self._finished = self._work
            self._work = _folder("work-dir", options.work_dir, is_owned=True)
        self._recorders: dict[str, Recorder] = {}
        topics = dict.fromkeys(options.topics)
        for topic in filter(self._pattern.search, topics):
            try:
                self._recorders[topic] = Recorder(topic, options, self._work, self._finished)
            except FilenameError as error:
                raise UsageError(f"--filename-format: {error}") from None
        if topics and not self._recorders:
            raise UsageError("--topic-pattern matches no --topic")
        if left_out := [topic for topic in options.topics if topic not in self._recorders]:
            log.warning("skipping topics that the pattern does not match: %s", ", ".join(left_out))
        self._running: list[asyncio.Task[None]] = []
        self._status = 0
        self._shown = (0, time.monotonic())

    async def run(self, stop: asyncio.Event) -> int:
        """Record until the event is set or a recorder fails; return the exit status."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reopen)
        for recorder in self._recorders.values():
            self._start(recorder, stop)
        finding = None if self._recorders else background(self._find_topics(stop), "topics")
        async with progress_shown(self.progress):
            await stop.wait()
        if finding is not None:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))
        await asyncio.gather(*self._running)
        return self._status

    def reopen(self) -> None:
        """Have every recorder sync and close its file."""
        for recorder in self._recorders.values():
            recorder.reopen()

    def progress(self) -> str:
        """Return the progress line; the rate is that since the last call."""
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
        async def record() -> None:
            try:
                await recorder.run()
            except ToolError as failure:
                log.critical("%s", failure)
                self._status = 1
            finally:
                # Also after a failure: the program ends then, and the other recorders sync and
                # finish first.
                stop.set()

        self._running.append(asyncio.create_task(record()))

    async def _find_topics(self, stop: asyncio.Event) -> None:
        finder = TopicFinder(self._options, self._pattern)
        refused: set[str] = set()
        while True:
            for topic in await finder.known():
                if topic in self._recorders or topic in refused:
                    continue
                try:
                    recorder = Recorder(topic, self._options, self._work, self._finished)
                except FilenameError as error:
                    log.error("topic %s is not recorded: %s", quote(topic), error)
                    refused.add(topic)
                    continue
                log.info("found topic %s", topic)
                self._recorders[topic] = recorder
                self._start(recorder, stop)
            await asyncio.sleep(self._options.topic_refresh_ns / SECOND)


class Recorder:
    """Writes one topic's messages to files, and finishes them when they are on the disk.

    1. FIN is sent only for messages that are on the disk. Any error of a file ends the recorder,
       which requeues its messages at once, so that nsqd need not wait for their timeout.
    2. It syncs when it holds as many messages as may be in flight, when the consumer is starved (no
       more come before some are finished), every `--sync-interval`, before half of a held message's
       timeout is over, when asked to reopen, and at its end.
    3. Files are written in other threads, one call at a time: a slow disk does not delay
       heartbeats.

    Args:
        topic: it has a legal name.
        options: checked.
        work: the folder to write to.
        finished: the folder that finished files are moved to; None: they stay.

    Raises:
        FilenameError: the topic can have no file.
        UsageError: an option of the client is not valid.
    """

    def __init__(self, topic: str, options: Options, work: Folder, finished: Folder | None) -> None:
        names = template(options, topic, is_moved=finished is not None)
        self._label = f"[{topic}/{options.channel}]"
        self.output = TopicOutput(names, work, finished, options, self._label)
        (self.consumer,) = common.consumers_of(PROGRAM, options, (topic,), options.channel)
        self._sync_interval = options.sync_interval_ns / SECOND
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
        await self._on_disk(self.output.recover_files)
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

    async def _receive(self) -> None:
        size = max(1, self.consumer.max_in_flight)
        # wait=0: messages are not collected to larger batches, because they are held until a sync
        # anyway.
        async for batch in self.consumer.batches(size, wait=0):
            async with self._writing:
                if not self._held:
                    now = time.monotonic()
                    self._overdue_at = now + (batch.expires_at - now) / 2
                    # _watch sleeps until the earlier of the two times that it knew; wake it to
                    # compute them again.
                    if self._overdue_at < self._tick_at:
                        self._woken.set()
                self._held.append(batch)
                self._held_count += len(batch)
                # While it stops, consumer.stop() waits for these messages: do not leave them to the
                # next tick. Nor if no more messages, or few, come before some are finished.
                sync = (
                    self._stopping
                    or self._held_count >= self.consumer.max_in_flight
                    or self.consumer.is_starved
                )
                files = self.output.files
                if await self._on_disk(partial(self.output.write, batch.bodies, sync=sync)):
                    await self._finish()
                if self.output.files > files:  # _watch does not know when the new file is too old
                    self._woken.set()

    async def _finish(self) -> None:
        """Send FIN for all messages held: they are on the disk."""
        held, self._held = self._held, []
        self._held_count, self._overdue_at = 0, NEVER
        for batch in held:
            await batch.finish()

    async def _watch(self) -> None:
        """Sync, rotate or close the file when it is due; each leaves all messages on the disk."""
        self._tick_at = time.monotonic() + self._sync_interval
        while True:
            due_at = min(self._tick_at, self._overdue_at, self.output.rotates_at)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_at - time.monotonic())):
                    await self._woken.wait()
            self._woken.clear()
            async with self._writing:
                now = time.monotonic()
                if self._reopening:
                    self._reopening = False
                    await self._on_disk(self.output.close)
                elif now >= min(self._tick_at, self.output.rotates_at):
                    self._tick_at = now + self._sync_interval
                    await self._on_disk(self.output.tick)
                elif now >= self._overdue_at or self._stopping:
                    await self._on_disk(self.output.sync)
                else:
                    continue
                await self._finish()

    async def _on_disk(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread. Raises ToolError: it failed."""
        try:
            return await asyncio.to_thread(call)
        except (OSError, FilenameError) as error:
            raise ToolError(
                f"{self._label} cannot write {self.output.shown()}: {error}; unfinished messages"
                " are delivered again"
            ) from error


class TopicFinder:
    """Asks nsqlookupds for topics that match a pattern; its sources and timeouts are checked."""

    def __init__(self, options: Options, pattern: Pattern) -> None:
        self._urls = [question(each, "topics") for each in options.lookupd_http_addresses]
        self._pattern = pattern
        # The TLS settings and the secret sent to nsqlookupds.
        self._config = common.consumer_config(PROGRAM, options)
        self._timeout = aiohttp.ClientTimeout(
            connect=options.http_client_connect_timeout_ns / SECOND,
            total=options.http_client_request_timeout_ns / SECOND,
        )
        self._failing: set[str] = set()

    async def known(self) -> list[str]:
        """Return the matching topics of the nsqlookupds that answer, in alphabetical order."""
        async with NsqlookupdClient(self._config, self._timeout) as asker:
            answers = await asyncio.gather(*(self._ask(asker, url) for url in self._urls))
        return sorted(filter(self._pattern.search, set().union(*answers)))

    async def _ask(self, asker: NsqlookupdClient, url: str) -> set[str]:
        try:
            found, left_out = names(await asker.ask(url), "topics")
        except (ConnectionError, ValueError) as error:
            if url not in self._failing:
                log.error("nsqlookupd %s: %s", shown(url), error)
            self._failing.add(url)
            return set()
        self._failing.discard(url)
        if left_out:
            log.warning("skipped %d topics with invalid names", left_out)
        return set(found)


def _folder(flag: str, path: str, *, is_owned: bool = False) -> Folder:
    try:
        return Folder(path, is_owned=is_owned)
    except ValueError as error:
        reason = str(error)
    except OSError as error:
        reason = str(error)
        if error.errno:
            text = os.strerror(error.errno)
            more = "" if error.strerror in (None, text) else f": {error.strerror}"
            reason = f"{text.lower()}{more}"
    raise UsageError(f"--{flag} {quote(path)}: {reason}")
