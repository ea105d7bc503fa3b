"""`move`: move a topic from one nsqd to another, with its channels and their unfinished messages.

1. The target gets the topic and its channels, paused where they are paused at the source. Then the
   source refuses publishes to the topic: producers publish elsewhere.
2. For `--wait`, consumers finish what they can. The remaining messages are then carried over
   channel by channel: read as a consumer of the channel, published at the target for that channel
   alone, and finished at the source only after the target's OK. Then the topic is deleted at the
   source, and the verb fails if the source has it again 1.5 s later.
3. Nothing is lost. If the source, the target or the verb dies, messages that were published at the
   target but not yet finished at the source are published again by the next run: at most what one
   consumer has in flight. The last line reports the maximum: messages that were delivered before,
   and messages whose publish was not answered.
4. After a stop or a failure at any point, the same command continues where it was. The source keeps
   draining the topic, so that no publish creates it there again: `DELETE /topic/drain` ends that.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from sparq.client import Consumer, SparqClientError
from sparq.cluster import actions
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.cluster.fleet import Node, UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.options.units import SECOND
from sparq.protocol.address import Address
from sparq.protocol.envelope import seal
from sparq.protocol.names import is_dead_letter_topic, is_ephemeral
from sparq.tools.admin.job import Job, in_words
from sparq.tools.admin.verbs import PROGRAM
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import client_config, progress_shown, publish_runs

CARRIER: Final = "sparq_move"
"""The channel used to read messages that are in no channel; the target does not get it."""

IN_FLIGHT: Final = 500
PUBLISH_BYTES: Final = 1 << 20
PATIENCE_SECONDS: Final = 10.0
"""Time after which the next run gets the messages that a killed run had in flight."""

LEARN_SECONDS: Final = 5.0
"""Time that an nsqd waits for nsqlookupd's list of a new topic's channels."""

POLL_SECONDS: Final = 0.25
CONNECT_SECONDS: Final = 10.0
_SIZE: Final = struct.Struct(">i")


class Move:
    """One move.

    Attributes:
        carried: messages that the target has acknowledged.
        again: those of them with earlier delivery attempts: an earlier run may have published them.
        doubtful: messages whose publish the target has not answered.
        left: messages left at the source.
        has_begun: whether source or target may have been changed.
    """

    def __init__(self, job: Job, source: Node, target: Node) -> None:
        """Raises UsageError: an option of the client is not valid."""
        self.job = job
        self.topic = job.topic
        self.source, self.target = source, target
        self._config = client_config(
            f"{PROGRAM} move",
            job.options.consumer_opt,
            max_in_flight=IN_FLIGHT,
            max_attempts=0,
            msg_timeout=PATIENCE_SECONDS,
        )
        self.carried = self.again = self.doubtful = self.left = 0
        self.has_begun = False

    async def run(self) -> None:
        """Move the topic.

        Raises:
            ToolError: it cannot go on until an operator removes the reason.
            UpstreamError: a daemon did not do its part.
            SparqClientError: messages cannot be read from the source's TCP port.
        """
        figures = await self._figures()
        if figures is None:
            # An earlier run got this far if the source refuses publishes to the topic.
            answer = await self.job.fleet.get(self.source, "/drain")
            topics = answer.get("draining_topics") if isinstance(answer, dict) else None
            if isinstance(topics, dict) and self.topic in topics:
                return
            raise ToolError(f"{self.source.address} has no topic {self.topic}: nothing was done")
        self._refuse_paused(figures)
        self.has_begun = True
        await self._furnish(figures)
        await self._post(self.source, "/topic/drain")
        await self._wait_for_consumers()
        for name in await self._channels_to_carry():
            await self._carry(name)
        if (figures := await self._figures()) is not None:
            if left := self._unfinished(figures):
                raise ToolError(
                    f"{left:,} messages of topic {self.topic} are back at {self.source.address}"
                )
            if figures.paused:
                await self._post(self.target, "/topic/pause")
            await self._post(self.source, "/topic/delete")
            if why := await actions.returned(self.job.fleet, self.source, self.topic):
                raise ToolError(f"topic {self.topic} at {self.source.address}: {why}")

    # State of the source

    async def _figures(self) -> TopicFigures | None:
        """Return the topic's stats at the source; None: the source does not have it."""
        stats = await self.job.fleet.stats(self.topic, clients=True, nodes=[self.source])
        if self.source.address not in stats.value:
            why = stats.errors.get(self.source.address, "no answer")
            raise UpstreamError(self.source.address, why)
        return stats.value[self.source.address].topic(self.topic)

    @staticmethod
    def _channels(figures: TopicFigures) -> list[ChannelFigures]:
        """Return the channels that move; ephemeral ones disappear with their consumers."""
        return [one for one in figures.channels if not is_ephemeral(one.channel_name)]

    def _unfinished(self, figures: TopicFigures) -> int:
        self.left = figures.left + sum(one.left for one in self._channels(figures))
        return self.left

    def _refuse_paused(self, figures: TopicFigures) -> None:
        """Refuse paused topics and channels that could only be read by resuming their consumers.

        Channels that are read by ranges are refused, too.
        """
        if figures.paused and figures.left:
            raise ToolError(
                f"topic {self.topic} is paused at {self.source.address}, and messages wait for its"
                " channels: unpause it there, and pause it at the target after the move"
            )
        for one in self._channels(figures):
            if one.paused and one.client_count and one.left:
                raise ToolError(
                    f"channel {one.channel_name} is paused at {self.source.address} and has"
                    " consumers: stop them, or unpause it"
                )
            if one.range_reader:
                raise ToolError(
                    f"channel {one.channel_name} is read by ranges: stop {one.range_reader},"
                    " then delete the channel or seek it"
                )

    # Steps of the move

    async def _post(self, node: Node, path: str, body: bytes = b"", **query: str) -> None:
        await self.job.fleet.post(node, path, body, topic=self.topic, **query)

    async def _furnish(self, figures: TopicFigures) -> None:
        """Create topic and channels at the target; pause them before anything can be read."""
        await self._post(self.target, "/topic/create")
        for one in self._channels(figures):
            name = one.channel_name
            if name == CARRIER:
                continue
            await self._post(self.target, "/channel/create", channel=name)
            if one.paused:
                await self._post(self.target, "/channel/pause", channel=name)
                # A paused channel sends no messages, not even to the consumer of `_carry`. It has
                # no other consumers here, so nobody else gets messages by this.
                if not one.client_count:
                    await self._post(self.source, "/channel/unpause", channel=name)

    async def _wait_for_consumers(self) -> None:
        """Wait until consumers have finished all messages of their channels, or for `--wait`."""
        try:
            async with asyncio.timeout(self.job.options.wait_ns / SECOND):
                while (figures := await self._figures()) is not None:
                    self._unfinished(figures)
                    channels = self._channels(figures)
                    if not any(one.client_count and one.left for one in channels):
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            return

    async def _channels_to_carry(self) -> list[str]:
        figures = await self._figures()
        if figures is None:
            return []
        names = [one.channel_name for one in self._channels(figures) if one.left]
        if not figures.channels and figures.left:
            # The target may still be asking nsqlookupd which channels its new topic has. It would
            # create CARRIER as well, and the messages would be in that channel, not in the topic.
            # No answer of nsqd shows that it is done, so wait as long as it may take.
            await asyncio.sleep(LEARN_SECONDS)
            await self._post(self.source, "/channel/create", channel=CARRIER)
            names.append(CARRIER)
        return names

    async def _carry(self, name: str) -> None:
        """Carry over a channel's messages until it is empty."""
        async with Consumer(
            self.topic,
            name,
            nsqd_tcp_addresses=str(Address(self.source.broadcast_address, self.source.tcp_port)),
            config=self._config,
        ) as consumer:
            await consumer.until_connected(CONNECT_SECONDS)
            carrying = asyncio.ensure_future(self._pass_on(consumer, name))
            try:
                # nsqd does not tell a consumer that a channel is empty; only `/stats` shows it.
                while not carrying.done() and (figures := await self._figures()) is not None:
                    self._unfinished(figures)
                    if not any(one.left for one in figures.channels if one.channel_name == name):
                        break
                    await asyncio.wait([carrying], timeout=POLL_SECONDS)
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)
            if not carrying.cancelled():
                carrying.result()

    async def _pass_on(self, consumer: Consumer, name: str) -> None:
        """Publish the channel's messages at the target; those without an answer are doubtful."""
        query = {"binary": "true"} | ({} if name == CARRIER else {"channel": name})
        async for batch in consumer.batches(IN_FLIGHT, wait=0.05):
            if batch.attempts_max > 1:
                self.again += sum(message.attempts > 1 for message in batch)
            bodies = batch.bodies
            if is_dead_letter_topic(self.topic):  # letters keep their histories
                bodies = [seal(message.letter or {}, message.body) for message in batch]
            for part in publish_runs(bodies, PUBLISH_BYTES):
                # Counted before the request: if it fails without an answer, the messages may be
                # stored.
                self.doubtful += len(part)
                body = _SIZE.pack(len(part)) + b"".join(_SIZE.pack(len(one)) + one for one in part)
                await self._post(self.target, "/mpub", body, **query)
                self.doubtful -= len(part)
                self.carried += len(part)
            # In this order: a crash in between publishes these messages twice, the reverse loses
            # them.
            await batch.finish()


async def move(job: Job) -> int:
    """Move the topic; return the exit status.

    Raises:
        UsageError: words or flags do not go together.
        ToolError: nothing was done.
    """
    what, job.topic = job.words
    job.channel = ""
    options = job.options
    if what != "topic":
        raise UsageError("takes topic NAME")
    job.check_names()
    if not options.source or not options.target or options.source == options.target:
        raise UsageError("--from and --to must name two different nsqds")
    try:
        source, target = [await job.fleet.node(at) for at in (options.source, options.target)]
    except UnknownNode as error:
        raise await job.no_such_node(str(error), "of this cluster") from None
    doing = Move(job, source, target)
    failed = ""
    try:
        async with progress_shown(
            lambda: f"{doing.carried:,} messages carried over, {doing.left:,} left"
        ):
            await doing.run()
    except UpstreamError as error:
        failed = f"{error.address}: {in_words(error.reason)}"
    except SparqClientError as error:
        failed = f"{source.address}: {error}"
    except ToolError as error:
        if not doing.has_begun:
            raise
        failed = str(error)
    twice = doing.again + doing.doubtful
    document = {
        **{"verb": "move", "topic": job.topic, "result": "failed" if failed else "done"},
        **{"from": source.address, "to": target.address},
        **{"carried": doing.carried, "maybe_twice": twice, "error": failed or None},
    }
    if failed and not options.json:
        job.warn(failed)
        job.warn("not moved: run this again to continue")
    past = "moved" if not failed else "not moved yet"
    await job.show(
        document,
        f"{past}: topic {job.topic} from {source.address} to {target.address}:"
        f" {doing.carried:,} messages carried over, at most {twice:,} of them twice",
    )
    return int(bool(failed))
