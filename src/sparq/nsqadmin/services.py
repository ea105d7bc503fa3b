"""The parts of nsqadmin that its routes share: one object for its pages and its JSON APIs."""

from __future__ import annotations

from dataclasses import dataclass

from sparq.cluster.fleet import Fleet
from sparq.daemon.access.audit import AuditLog
from sparq.nsqadmin.access import AdminAccess
from sparq.nsqadmin.dead_letters import DeadLetterList
from sparq.nsqadmin.notify import Notifier
from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.nsqadmin.watch.watch import ClusterWatch


@dataclass(slots=True)
class Services:
    """The parts of one nsqadmin.

    Attributes:
        options: the current options; SIGHUP and `/config` change some of them.
        fleet: the cluster.
        access: access control.
        audit: the audit log.
        notifier: sends actions to the operator's endpoint.
        watch: the cluster's figures, shared by all viewers.
        letters: the dead letters.
    """

    options: NsqadminOptions
    fleet: Fleet
    access: AdminAccess
    audit: AuditLog
    notifier: Notifier
    watch: ClusterWatch
    letters: DeadLetterList

    def url(self, path: str) -> str:
        """Prefix a path of nsqadmin with the base path."""
        return base_of(self.options) + path
