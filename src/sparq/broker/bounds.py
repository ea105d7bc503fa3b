"""How much a topic may hold, and how fast it takes that; what goes where it is full.

1. Bytes count in whole files, and while some channel needs them (see `options`). Messages count
   exactly: those that the channel has not finished that has most of them, and those that no channel
   sees yet.
2. A full topic refuses publishes, or with `drop_oldest` gives up its oldest unread messages: whole
   files of them for the one limit, as many as are too many for the other. What is in flight,
   requeued or deferred stays; where that alone is too much, publishes are refused all the same.
3. Without a channel, and while a topic is paused, the oldest that no channel sees yet go, deferred
   ones among them.
4. An ephemeral topic has a bound of its own (decision 16).
5. What is published too fast is held back, or refused (see `rates`).
"""

from __future__ import annotations

from sparq.broker.channel import Channel
from sparq.broker.options import LimitReached
from sparq.broker.publishing import Publish
from sparq.broker.topic import Topic
from sparq.protocol.instant import Instant
from sparq.protocol.layout import FRAME_OVERHEAD


def admit(topic: Topic, publish: Publish, now: Instant) -> int:
    """Whether a publish may be stored, and when.

    Returns:
        0: now; else the time (mono ns) until which it is to be held back.

    Raises:
        LimitReached: it may not; the topic counts that.
    """
    settings = topic.settings
    ready_ns = now.mono_ns
    if settings.max_publish_rate or settings.max_client_publish_rate:
        ready_ns = _paced(topic, publish, now)
    # Behind the rates: nothing is given up for a publish that they refuse.
    if settings.max_topic_bytes or settings.max_topic_messages:
        make_room(topic, publish)
    return ready_ns if ready_ns > now.mono_ns else 0


def _paced(topic: Topic, publish: Publish, now: Instant) -> int:
    """When a publish may be stored as its topic's rates have it; raises LimitReached: never."""
    topic_rate = topic.settings.max_publish_rate
    client_rate = topic.settings.max_client_publish_rate
    client = 0 if publish.session is None else publish.session.id
    rates = topic.publishing.rates
    ready_ns = rates.ready_ns(client, publish.messages, now.mono_ns, topic_rate, client_rate)
    if ready_ns is not None:
        return ready_ns
    topic.publishing.refused_count += publish.messages
    limits = [
        f"{rate} messages a second of {whose}"
        for rate, whose in ((topic_rate, f"topic {topic.name}"), (client_rate, "one client"))
        if rate
    ]
    raise LimitReached(f"the limit of {' or '.join(limits)} is reached")


def make_room(topic: Topic, publish: Publish) -> None:
    """Have room for a publish to a topic of limited size.

    Raises:
        LimitReached: there is none; the topic counts that.
    """
    pending = topic.publishing
    messages = publish.messages + pending.pending_messages
    size_bytes = pending.pending_bytes + publish.size_bytes + publish.messages * FRAME_OVERHEAD
    if topic.settings.drop_oldest and _fits_alone(topic, size_bytes, messages):
        while full(topic, size_bytes, messages) and _give_up(topic, messages):
            pass
    if limit := full(topic, size_bytes, messages):
        pending.refused_count += publish.messages
        raise LimitReached(f"the limit of {limit} of topic {topic.name} is reached")


def _fits_alone(topic: Topic, size_bytes: int, messages: int) -> bool:
    """Whether a topic that holds nothing else had room: else nothing is to be given up for it."""
    most_bytes, most = topic.settings.max_topic_bytes, topic.settings.max_topic_messages
    return (not most_bytes or size_bytes <= most_bytes) and (not most or messages <= most)


def full(topic: Topic, size_bytes: int, messages: int) -> str:
    """Which limit would be passed by so much more, in words; empty: none."""
    settings = topic.settings
    if topic.books is None:
        return ""
    if not topic.trimming.has_room(size_bytes):
        return f"{settings.max_topic_bytes} bytes"
    most = settings.max_topic_messages
    if 0 < most < unfinished_count(topic) + messages:
        return f"{most} messages"
    return ""


def unfinished_count(topic: Topic) -> int:
    """Messages that the channel with most of them has not finished, or that none sees yet."""
    return topic.depth() + max(map(_unfinished, topic.channels.values()), default=0)


def _unfinished(channel: Channel) -> int:
    return channel.depth() + channel.in_flight.count + channel.deferred_count()


def _give_up(topic: Topic, messages: int) -> int:
    """Give up some of the oldest; how many, 0: there are none that can be given up."""
    most = topic.settings.max_topic_messages
    if not most or unfinished_count(topic) + messages <= most:
        return _give_up_file(topic)
    too_many = topic.depth() + messages - most
    given_up = 0
    for channel in topic.channels.values():
        excess = too_many + _unfinished(channel)
        if excess > 0:
            given_up += _overrun(channel, _behind(topic, channel.cursor_ordinal, excess))
    excess = unfinished_count(topic) + messages - most
    return given_up or _drop_unseen(topic, _behind(topic, topic.stream.ordinal, excess))


def _behind(topic: Topic, ordinal: int, count: int) -> int:
    """The index behind so many messages."""
    return topic.stream.log.index_at_ordinal(ordinal + count)


def _give_up_file(topic: Topic) -> int:
    """Give up what is unread in the oldest file that has something unread."""
    for segment in topic.stream.log.segments():
        if not segment.sealed:
            break
        given_up = sum(_overrun(channel, segment.end_index) for channel in topic.channels.values())
        if given_up := given_up or _drop_unseen(topic, segment.end_index):
            return given_up
    return 0


def _drop_unseen(topic: Topic, end: int) -> int:
    dropped = topic.drop_unseen(end)
    topic.publishing.given_up_count += dropped
    return dropped


def _overrun(channel: Channel, end: int) -> int:
    voided = channel.overrun(end)
    channel.voided_count += voided
    return voided


def limit_notes(topic: Topic, now: Instant) -> list[str]:
    """What an operator should read of a topic's limits, once a minute."""
    refused, given_up = topic.publishing.tell_limited(now.mono_ns)
    said = {"refused by its limits": refused, "given up unseen, as it was full": given_up}
    return [f"topic {topic.name}: messages {what}: {n}" for what, n in said.items() if n]
