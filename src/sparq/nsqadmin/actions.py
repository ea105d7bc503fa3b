"""Actions that users request: checks rights, performs, writes the audit log, notifies.

1. The role of the action itself is required (`access.ACTION_ROLES`), whatever role the route
   required.
2. To delete messages, topics or channels, the user must type the name. To change policies, which
   keep messages and have no name, the user must type the word `policies`. NSQ's own routes have no
   such field and pass `must_type=False`.
3. If an audit log is configured but cannot be written, no action is performed.
4. An action is written to the audit log before its answer is sent, even if it failed. Notifications
   follow NSQ: a creation, a deletion and a tombstone are notified only if the action could be sent
   to the cluster's daemons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiohttp import web

from sparq.cluster import actions as cluster
from sparq.cluster import draining, policies
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.daemon.access.audit import AuditLog, Outcome, entry_of
from sparq.daemon.access.rules import Caller, Role
from sparq.daemon.http import HttpError
from sparq.nsqadmin.access import ACTION_ROLES, AdminAccess
from sparq.nsqadmin.notify import Notifier
from sparq.protocol.names import is_valid_name

TOMBSTONE: Final = "tombstone_topic_producer"
OF_NODE: Final = ("drain_node", "undrain_node", "close_client")
OF_TOPIC: Final = ("pause_topic", "unpause_topic", "empty_topic", "delete_topic")
OF_CHANNEL: Final = ("pause_channel", "unpause_channel", "empty_channel", "delete_channel")
OF_MESSAGES: Final = (
    *("requeue_message", "finish_message", "cancel_message", "copy_message", "redrive_message"),
)
TYPED: Final = {
    action
    for action, role in ACTION_ROLES.items()
    if role == Role.ADMINISTER and not action.endswith(("_node", "_message"))
}
"""Actions that need a typed text: the channel's name, else the topic's name, or `POLICIES`."""

NEEDED: Final = {
    **dict.fromkeys(OF_MESSAGES, ("ids",)),
    "copy_message": ("ids", "to"),
    "seek_channel": ("to",),
    "close_client": ("client",),
    "set_policies": ("policies",),
}
"""The arguments that an action cannot do without."""

POLICIES: Final = "policies"
OF_POLICIES: Final = ("set_policies", "drop_policies")
OWN_STEPS: Final = ("message/", "channel/seek", "client/close", POLICIES, "drain")
"""Beginnings of steps that Go's nsqd does not support."""

ALWAYS_TOLD: Final = ("pause_", "unpause_", "empty_")


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action that a user requests.

    Attributes:
        action: one of `ACTION_ROLES`.
        channel: "" for actions on the topic itself.
        node: `host:port` of the node to tombstone, to drain, to publish to, or of the connection.
        arguments: for `seek_channel`: `to`, and `nodes`, a list of addresses (empty: all). For
            actions on messages: `ids`, lists of ids by node; for `copy_message` also `to`, a topic.
            For `drain_node`: `exit`, whether its process ends once nothing is left.
            For `close_client`: `client`, the remote address of the connection.
            For `publish_message`, only for the audit log: `bytes`, the size of the body.
            For policies, only for the audit log: `policies`, the number of policies to set.
        document: for `set_policies`: the document in the form that nsqds accept; for
            `publish_message`: the body.
        typed: the name that the user typed, if the action needs one.
    """

    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    typed: str = ""
    document: bytes = b""

    def mistake(self, must_type: bool) -> str:
        """The error code if the request is invalid; "" if it is valid."""
        of_channel, typed_name = self.action.endswith("_channel"), self.topic
        is_valid = is_valid_name if self.action.startswith("create_") else bool
        if self.action in OF_POLICIES:
            typed_name = POLICIES
        elif self.action in OF_NODE:
            if not self.node:
                return "INVALID_ARGUMENT"
        elif not is_valid(self.topic):
            return "INVALID_TOPIC"
        elif of_channel:
            typed_name = self.channel
            if not is_valid(self.channel):
                return "INVALID_CHANNEL"
        is_wrong = must_type and self.action in TYPED and self.typed != typed_name
        return "NAME_NOT_TYPED" if is_wrong else ""

    def check_arguments(self) -> None:
        """Raises ValueError: an argument is missing, or a copy's topic has no valid name."""
        for name in NEEDED.get(self.action, ()):
            if self.arguments.get(name, "") in ("", {}):
                raise ValueError(f"{self.action} needs `{name}`")
        if self.action == "publish_message" and not self.document:
            raise ValueError("a message needs a body")
        if self.action == "copy_message" and not is_valid_name(self.arguments["to"]):
            raise ValueError("`to` must be the name of a topic")

    async def perform(self, fleet: Fleet) -> Report:
        """Perform the action at the daemons; its arguments have been checked.

        Raises:
            UnknownNode: the cluster has no such node.
            ValueError: the daemons cannot do it with these arguments.
        """
        verb, _, kind = self.action.partition("_")
        topic, node, told = self.topic, self.node, self.arguments
        channel = self.channel if kind in ("channel", "message") else ""
        match verb:
            case "create":
                return await cluster.create(fleet, topic, channel)
            case "pause" | "unpause" | "empty" | "delete":
                return await cluster.change(verb, fleet, topic, channel)
            case "tombstone":
                return await cluster.tombstone(fleet, topic, node)
            case "seek":
                may_skip, nodes = told.get("may_skip", True), told.get("nodes", ())
                at = (fleet, topic, channel, told["to"])
                return await cluster.seek(*at, may_skip=may_skip, nodes=nodes)
            case "publish":
                return await cluster.at_node(fleet, node, "pub", self.document, topic=topic)
            case "close":
                return await cluster.at_node(fleet, node, "client/close", client=told["client"])
            case "drain":
                return await draining.begin(fleet, node, leave=told.get("exit", False))
            case "undrain":
                return await draining.end(fleet, node)
            case "set":
                return await policies.replace(fleet, self.document)
            case "drop":
                return await policies.drop(fleet)
        to = told.get("to", "")
        return await cluster.messages(fleet, verb, topic, channel, told["ids"], to=to)


class Actions:
    """Performs actions on one cluster."""

    def __init__(
        self, fleet: Fleet, access: AdminAccess, audit: AuditLog, notifier: Notifier
    ) -> None:
        self._fleet = fleet
        self._access = access
        self._audit = audit
        self._notifier = notifier

    async def perform(
        self, request: web.BaseRequest, order: ActionRequest, *, must_type: bool = True
    ) -> Report:
        """Perform an action; returns a report of its steps.

        With `must_type`, actions that cannot be undone need the typed name (`TYPED`).

        Raises:
            HttpError: nothing was done: 401 or 403, the role is missing; 400 INVALID_ACTION,
                INVALID_TOPIC, INVALID_CHANNEL, INVALID_ARGUMENT, INVALID_POLICIES, NAME_NOT_TYPED;
                404 NODE_NOT_FOUND; 503 AUDIT_UNAVAILABLE.
        """
        if order.action not in ACTION_ROLES:
            raise HttpError(400, "INVALID_ACTION")
        who = self._access.require(request, ACTION_ROLES[order.action])
        if order.action == "seek_channel" and not who.may(Role.ADMINISTER):
            # Skipping unfinished messages has the effect of emptying.
            order = replace(order, arguments={**order.arguments, "may_skip": False})
        if why := order.mistake(must_type):
            raise HttpError(400, why)
        if await self._audit.unavailable():
            raise HttpError(503, "AUDIT_UNAVAILABLE")
        report, failure, arguments = Report(), None, order.arguments
        try:
            order.check_arguments()
            report = await order.perform(self._fleet)
            detail = report.text
            if order.action in OF_POLICIES:
                arguments = {**arguments, "changes": policies.changed(report)}
        except UnknownNode as error:
            detail, failure = f"{error} is not a known node", HttpError(404, "NODE_NOT_FOUND")
        except policies.DocumentRefused as error:
            detail, failure = str(error), HttpError(400, f"{policies.REFUSED}: {error}")
        except ValueError as error:
            detail, failure = str(error), HttpError(400, "INVALID_ARGUMENT")
        about: dict[str, Any] = {"topic": order.topic, "channel": order.channel, "node": order.node}
        outcome: Outcome = "failed" if failure else report.result
        about |= {"arguments": arguments, "detail": detail}
        await self._audit.record(entry_of(who, order.action, outcome, **about))
        if failure is not None:
            raise failure
        # As in NSQ, which notifies of a pause, an unpause and an emptying even if they failed.
        if not report.failed or order.action.startswith(ALWAYS_TOLD):
            self._notify(request, who, order)
        return report

    def _notify(self, request: web.BaseRequest, who: Caller, order: ActionRequest) -> None:
        if not self._notifier.endpoint:
            return
        about = {"topic": order.topic, "node": order.node, "remote": who.remote}
        about["user"] = who.name if who.via in ("header", "token") else ""
        # NSQ creates the topic first, and notifies of both.
        if order.action == "create_channel":
            self._notifier.queue(request, "create_topic", **about)
        self._notifier.queue(request, order.action, channel=order.channel, **about)


def error_of(step: StepOutcome) -> str:
    """Return why a step failed; a readable text if the node is a Go nsqd without this feature."""
    is_gos = step.step.startswith(OWN_STEPS) and policies.is_gos(step.error)
    return policies.GO_NODE if is_gos else step.error
