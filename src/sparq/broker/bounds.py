"""Limits of topics and channels: which publishes are refused or held, which messages are dropped.

1. Bytes are counted in whole files, as long as some channel needs them (see `options`). Messages
   are counted exactly: the unfinished messages of the channel with most of them, plus the messages
   that no channel sees yet.
2. A full topic refuses publishes or, with `drop_oldest`, drops its oldest unread messages: whole
   files for the limit in bytes, exactly the excess for the limit in messages. Messages in flight,
   requeued or deferred stay; if those alone exceed the limit, publishes are still refused.
3. Without a channel, and while a topic is paused, the oldest messages that no channel sees yet are
   dropped, including deferred ones.
4. An ephemeral topic has a bound of its own.
5. Publishes that exceed a rate are held back or refused (see `publishing`).
6. A lag or age limit drops a channel's messages that its cursor has not reached, oldest first, so
   that a channel without consumers does not fill the disk. It works on messages, not on files: at a
   low rate one file may hold the messages of weeks. Messages in flight, requeued or deferred stay;
   each keeps only its own file.
"""

from __future__ import annotations

from sparq.broker.channel import Channel
from sparq.broker.options import LimitReached
from sparq.broker.publishing import Publish
from sparq.broker.topic import Topic
from sparq.protocol.dead_letters import dead_letter_topic
from sparq.protocol.instant import Instant
from sparq.protocol.layout import FRAME_OVERHEAD


def admit(topic: Topic, publish: Publish, now: Instant) -> int:
    """Check a publish against the topic's limits.

    Returns:
        0: store it now; otherwise the time (mono ns) until which it must be held back.

    Raises:
        LimitReached: it is refused; the topic counts that.
    """
    settings = topic.settings
    ready_ns = now.mono_ns
    if settings.max_publish_rate or settings.max_client_publish_rate:
        ready_ns = _paced(topic, publish, now)
    # After the rates: no message is dropped for a publish that a rate refuses.
    if settings.max_topic_bytes or settings.max_topic_messages:
        make_room(topic, publish)
    return ready_ns if ready_ns > now.mono_ns else 0


def _paced(topic: Topic, publish: Publish, now: Instant) -> int:
    """When (mono ns) the rates allow a publish; raises LimitReached: a rate refuses it."""
    topic_rate = topic.settings.max_publish_rate
    client_rate = topic.settings.max_client_publish_rate
    client = 0 if publish.session is None else publish.session.id
    rates = topic.publishing.rates
    ready_ns = rates.ready_ns(client, publish.messages, now.mono_ns, topic_rate, client_rate)
    if ready_ns is not None:
        return ready_ns
    topic.counts.refused_count += publish.messages
    limits = [
        f"{rate} messages per second for {whose}"
        for rate, whose in ((topic_rate, f"topic {topic.name}"), (client_rate, "one client"))
        if rate
    ]
    raise LimitReached(f"the limit of {' or '.join(limits)} is reached")


def make_room(topic: Topic, publish: Publish) -> None:
    """Make sure that a topic of limited size has room for a publish, dropping messages if allowed.

    Raises:
        LimitReached: there is no room; the topic counts that.
    """
    pending = topic.publishing
    messages = publish.messages + pending.pending_messages
    # Publishes that wait for a commit count: many may arrive in one turn, before the log grows.
    size_bytes = pending.pending_bytes + publish.size_bytes + publish.messages * FRAME_OVERHEAD
    most_bytes, most = topic.settings.max_topic_bytes, topic.settings.max_topic_messages
    # If an empty topic had no room for it, dropping messages would be useless.
    fits_alone = (not most_bytes or size_bytes <= most_bytes) and (not most or messages <= most)
    if topic.settings.drop_oldest and fits_alone:
        while full(topic, size_bytes, messages) and _give_up(topic, messages):
            pass
    if limit := full(topic, size_bytes, messages):
        topic.counts.refused_count += publish.messages
        raise LimitReached(f"the limit of {limit} for topic {topic.name} is reached")


def full(topic: Topic, size_bytes: int, messages: int) -> str:
    """Which limit this many more bytes or messages would exceed, as text; empty: none."""
    settings = topic.settings
    if topic.writer is None:
        return ""
    most_bytes, log = settings.max_topic_bytes, topic.stream.log
    if 0 < most_bytes < log.size_bytes + size_bytes:
        # Computed only where it decides. Files that no channel needs do not count: they are about
        # to be deleted, or another option keeps them.
        free = sum(segment.size_bytes for segment in topic.trimming.unneeded(log.segments()))
        if log.size_bytes - free + size_bytes > most_bytes:
            return f"{most_bytes} bytes"
    most = settings.max_topic_messages
    if 0 < most < unfinished_count(topic) + messages:
        return f"{most} messages"
    return ""


def unfinished_count(topic: Topic) -> int:
    """Unseen messages plus the unfinished ones of the channel that has most of them."""
    return topic.depth() + max(map(_unfinished, topic.channels.values()), default=0)


def _unfinished(channel: Channel) -> int:
    return channel.depth() + channel.in_flight.count + channel.deferred_count()


def _give_up(topic: Topic, messages: int) -> int:
    """Drop some of the oldest messages; returns how many, 0: none can be dropped."""
    most = topic.settings.max_topic_messages
    if not most or unfinished_count(topic) + messages <= most:
        return _give_up_file(topic)
    too_many = topic.depth() + messages - most
    given_up = 0
    for channel in topic.channels.values():
        # Each channel loses only its own excess: a full topic takes nothing from one that keeps up.
        excess = too_many + _unfinished(channel)
        if excess > 0:
            given_up += _overrun(channel, _index_after(topic, channel.cursor_ordinal, excess))
    excess = unfinished_count(topic) + messages - most
    return given_up or _drop_unseen(topic, _index_after(topic, topic.stream.ordinal, excess))


def _index_after(topic: Topic, ordinal: int, count: int) -> int:
    """The index that is `count` messages after an ordinal."""
    return topic.stream.log.index_at_ordinal(ordinal + count)


def _give_up_file(topic: Topic) -> int:
    """Drop the unread messages of the oldest file that has any; returns how many."""
    for segment in topic.stream.log.segments():
        # The active file stays: the next commit would have to create another one.
        if not segment.sealed:
            break
        given_up = sum(_overrun(channel, segment.end_index) for channel in topic.channels.values())
        if given_up := given_up or _drop_unseen(topic, segment.end_index):
            return given_up
    return 0


def _drop_unseen(topic: Topic, end: int) -> int:
    dropped = topic.drop_unseen(end)
    topic.counts.given_up_count += dropped
    return dropped


def _overrun(channel: Channel, end: int) -> int:
    voided = channel.overrun(end)
    channel.counts.voided_count += voided
    return voided


def limit_lag(topic: Topic, now: Instant) -> None:
    """Drop unread messages beyond the lag and age limits of a topic's channels."""
    for channel in topic.channels.values():
        settings, counts = channel.settings, channel.counts
        # Two counts for operators: messages beyond a lag limit, and beyond an age limit.
        if settings.max_channel_lag_bytes:
            log = topic.stream.log
            _overrun(channel, log.index_within_bytes(settings.max_channel_lag_bytes))
        if settings.max_channel_lag_time_ns:
            counts.voided_count += _drop_older(channel, settings.max_channel_lag_time_ns, now)
        if settings.message_ttl_ns:
            counts.expired_count += _drop_older(channel, settings.message_ttl_ns, now)


def _drop_older(channel: Channel, age_ns: int, now: Instant) -> int:
    """Drop a channel's unread messages that are older than this; returns how many."""
    stream, wall_ns = channel.stream, now.wall_ns - age_ns
    if channel.cursor >= stream.end:
        return 0
    floor = stream.log.index_at_time(wall_ns)
    if floor is None:
        # The read is done by the next call, a second later, whose extent is nearly always the
        # same one.
        stream.want([stream.log.load_time(wall_ns)], channel.name)
        return 0
    return channel.overrun(floor)


def loss_notes(topic: Topic, now: Instant) -> list[str]:
    """Notes for the operator about messages that limits have cost, at most once a minute each."""
    notes = []
    name = f"topic {topic.name}"
    refused, given_up = topic.counts.unreported_losses(now.mono_ns)
    if refused:
        notes.append(f"{name}: messages refused by its limits: {refused}")
    if given_up:
        notes.append(f"{name} was full: dropped {given_up} messages that no channel had seen")
    for channel in topic.channels.values():
        voided, expired, dead = channel.counts.unreported_losses(now.mono_ns)
        name = f"channel {topic.name}:{channel.name}"
        if voided:
            notes.append(f"{name} is too far behind: dropped its {voided} oldest unread messages")
        if expired:
            notes.append(f"{name}: {expired} messages were too old to be delivered")
        if dead:
            where = dead_letter_topic(topic.name)
            notes.append(
                f"{name}: moved {dead} messages that kept coming back to the topic {where}"
            )
    return notes
