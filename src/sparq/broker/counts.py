"""What topics and channels count since nsqd started, and how often losses are reported.

The counts are in `/stats` under the same names, and in `/metrics`; `stats` copies them. A count
that the state already gives, such as a channel's depth or `message_count`, is not kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import sub
from typing import Final

from sparq.options.units import SECOND

REPORT_NS: Final = 60 * SECOND
"""Minimum time between two reports of one `ReportedLosses`."""


class ReportedLosses:
    """Counts of losses, and what they were at the last report to the operator."""

    def __init__(self) -> None:
        self._reported: tuple[int, ...] = ()
        self._next_report_ns = 0

    def unreported(self, *counts: int, mono_ns: int) -> tuple[int, ...]:
        """Return by how much the counts have risen since the last report, for the next report.

        All are 0: they have not risen, or the last report was less than a minute ago.
        """
        before = self._reported or (0,) * len(counts)
        if counts == before or mono_ns < self._next_report_ns:
            return (0,) * len(counts)
        self._reported, self._next_report_ns = counts, mono_ns + REPORT_NS
        return tuple(map(sub, counts, before))


@dataclass(slots=True)
class ChannelCounts:
    """What one channel has counted.

    Attributes:
        finish_count: messages finished by subscribers, including those that have left.
        requeue_count: messages that subscribers have requeued with REQ.
        timeout_count: messages that were not finished in time.
        voided_count: unread messages that a limit on lag or on the topic's size has dropped.
        expired_count: messages finished undelivered because they were too old.
        dead_letter_count: messages that were moved to the dead-letter topic.
        redriven_count: dead letters of this channel that were sent back to their original topic.
        zone_local_msg_count: messages delivered to consumers in nsqd's zone.
        region_local_msg_count: messages delivered to consumers in nsqd's region, outside its zone.
        global_msg_count: the other deliveries, and all of them if location is not used.
    """

    finish_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    voided_count: int = 0
    expired_count: int = 0
    dead_letter_count: int = 0
    redriven_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    _losses: ReportedLosses = field(default_factory=ReportedLosses)

    def unreported_losses(self, mono_ns: int) -> tuple[int, ...]:
        """Return how many voided, expired and dead-lettered messages to report now."""
        counts = self.voided_count, self.expired_count, self.dead_letter_count
        return self._losses.unreported(*counts, mono_ns=mono_ns)


@dataclass(slots=True)
class TopicCounts:
    """What one topic has counted.

    Attributes:
        message_count: stored messages.
        message_bytes: the bytes of their bodies.
        refused_count: messages refused because the topic was full or a rate was exceeded.
        given_up_count: messages that no channel had seen, dropped because the topic was full.
        held_count: messages held back by a rate limit.
    """

    message_count: int = 0
    message_bytes: int = 0
    refused_count: int = 0
    given_up_count: int = 0
    held_count: int = 0
    _losses: ReportedLosses = field(default_factory=ReportedLosses)

    def unreported_losses(self, mono_ns: int) -> tuple[int, ...]:
        """Return how many refused and given-up messages to report now (see `ReportedLosses`)."""
        return self._losses.unreported(self.refused_count, self.given_up_count, mono_ns=mono_ns)
