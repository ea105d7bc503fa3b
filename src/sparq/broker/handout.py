"""What all deliveries of one channel in one turn have in common.

First deliveries and later ones are made in two modules; both are told this.
"""

from __future__ import annotations

from typing import NamedTuple

from sparq.broker.channel import Channel
from sparq.broker.sampling import Sampler
from sparq.broker.session import Session
from sparq.protocol.instant import Instant


class Handout(NamedTuple):
    """From which channel, by which dice, when."""

    channel: Channel
    sampler: Sampler
    now: Instant

    def deadline_ns(self, session: Session) -> int:
        """When what the session is given now counts as lost; the channel will be called then."""
        deadline_ns = self.now.mono_ns + session.msg_timeout_ns
        self.channel.agenda.schedule(self.channel, deadline_ns)
        return deadline_ns
