"""Channels with policies: a maximum message age, a maximum lag, a maximum number of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proofs import bodies
from proofs.simulate_parts.actors import MOST_ATTEMPTS, Consumer
from proofs.simulate_parts.truth import ChannelTruth, TopicTruth
from sparq.broker.policies import Policy
from sparq.protocol.dead_letters import dead_letter_topic

if TYPE_CHECKING:
    from proofs.simulate_parts.weather import Weather
    from proofs.simulate_parts.world import World
    from sparq.protocol.instant import Instant


def policies(topic: str, weather: Weather) -> tuple[Policy, ...]:
    """Return the policies of the channels that `consumers_with_policies` creates."""
    return (
        Policy(topic, "aged", {"message_ttl_ns": weather.ttl_ns}),
        Policy(topic, "late", {"max_channel_lag_bytes": weather.lag_bytes}),
        Policy(topic, "failing", {"max_attempts": MOST_ATTEMPTS}),
    )


def consumers_with_policies(world: World, topic: TopicTruth) -> list[Consumer]:
    """Return a consumer per channel, one of which fails some messages, and one of the dead letters.

    If an OK does not require a sync, a power cut may lose a dead letter that was acknowledged.
    """
    aged, late, failing = (
        topic.channel(name, ordered=True) for name in ("aged", "late", "failing")
    )
    aged.ttl_ns, aged.may_miss = world.weather.ttl_ns, True  # hours have passed by the end
    late.skips_unread = True
    reader = dead_letters(topic, "reader")
    failing.most_attempts, failing.letters = MOST_ATTEMPTS, reader
    failing.may_miss = world.weather.options.sync_every != 1
    return [
        Consumer(world, aged),
        Consumer(world, late),
        Consumer(world, failing, fails=True),
        Consumer(world, reader),
    ]


def dead_letters(topic: TopicTruth, name: str) -> ChannelTruth:
    """Return a channel of a topic's dead-letter topic: the same messages, with other ids."""
    dead = DeadLetters(topic.truth, dead_letter_topic(topic.name))
    dead.command_of = topic.command_of
    topic.truth.topics[dead.name] = dead
    dead.channels[name] = Letters(dead, f"{dead.name}:{name}", ordered=False)
    return dead.channels[name]


class Letters(ChannelTruth):
    """A channel of a dead-letter topic: a crash may leave two dead letters of one message."""

    def _check_settled(self, key: int, now: Instant) -> None:
        """Check nothing: if one of two letters is finished, the other may still be delivered."""

    def _check_out(
        self, key: int, attempts: int, connection: int, timeout_ns: int, now: Instant
    ) -> None:
        """Check nothing: if one of two letters is with a consumer, the other may be delivered."""


class DeadLetters(TopicTruth):
    """A dead-letter topic."""

    def recognise(self, body: bytes, index: int) -> int | None:
        """Recognise a body as for any topic, except that one message may have several indexes."""
        author = bodies.read(body)
        if author is not None:
            self.index_of.pop(author.key, None)
        return super().recognise(body, index)
