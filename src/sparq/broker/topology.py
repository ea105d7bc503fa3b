"""Consumers of this nsqd's own zone first, then those of its region, then the others.

NSQ's experiment `topology-aware-consumption`: traffic between zones costs money. An empty zone is
a zone too: where nobody names one, all consumers are at home.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.options import BrokerOptions
    from sparq.broker.session import Session


class Nearness(IntEnum):
    """Where a consumer is; the smaller, the nearer."""

    ZONE = 0
    REGION = 1
    OTHER = 2


def nearness(session: Session, options: BrokerOptions) -> Nearness | None:
    """Where a consumer is; None when that does not count."""
    if not options.topology_aware:
        return None
    if session.topology_zone == options.topology_zone:
        return Nearness.ZONE
    return Nearness.REGION if session.topology_region == options.topology_region else Nearness.OTHER


def nearest(sessions: tuple[Session, ...]) -> tuple[Session, ...]:
    """Those that are nearest; all of them, when that does not count."""
    if sessions[0].nearness is None:
        return sessions
    least = min(session.nearness or 0 for session in sessions)
    return tuple(session for session in sessions if session.nearness == least)


def count(channel: Channel, session: Session, messages: int) -> None:
    """Count what a consumer was given by where it is: as other, where that does not count."""
    if session.nearness is Nearness.ZONE:
        channel.zone_local_count += messages
    elif session.nearness is Nearness.REGION:
        channel.region_local_count += messages
    else:
        channel.global_count += messages
