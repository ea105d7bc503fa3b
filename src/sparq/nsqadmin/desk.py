"""What the routes of nsqadmin work with: one object for its pages and its JSON APIs."""

from __future__ import annotations

from dataclasses import dataclass

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import Upstream
from sparq.daemon.access.audit import Audit
from sparq.nsqadmin.access.access import Access
from sparq.nsqadmin.actions import Actions
from sparq.nsqadmin.messages.dead_letters import DeadLetters
from sparq.nsqadmin.options import Options, base_of
from sparq.nsqadmin.watch.watch import Watch


@dataclass(slots=True)
class Desk:
    """The parts of one nsqadmin.

    Attributes:
        options: as they are now: SIGHUP and `/config` change some of them.
        upstream: what calls daemons; `fleet` says which there are.
        fleet: the cluster.
        access: who may do what.
        audit: who did what.
        actions: does what users order.
        watch: the cluster's figures, for all who look at once.
        letters: the dead letters.
    """

    options: Options
    upstream: Upstream
    fleet: Fleet
    access: Access
    audit: Audit
    actions: Actions
    watch: Watch
    letters: DeadLetters

    def url(self, path: str) -> str:
        """A path of nsqadmin's, below its base path."""
        return base_of(self.options) + path
