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

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiohttp import web

from sparq.cluster import actions as cluster
from sparq.cluster import draining
from sparq.cluster.actions import Report
from sparq.cluster.actions import StepOutcome as Step
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.audit_file import Outcome
from sparq.daemon.http import HttpError
from sparq.nsqadmin import policies
from sparq.nsqadmin.access.access import AdminAccess
from sparq.nsqadmin.access.roles import ACTION_ROLES, Identity, Role
from sparq.nsqadmin.notify import Notifier
from sparq.protocol.names import is_valid_name

OF_NODE: Final = ("drain_node", "undrain_node", "close_client")
TYPED: Final = {
    action
    for action, role in ACTION_ROLES.items()
    if role == Role.ADMINISTER and not action.endswith(("_node", "_message"))
}
"""Actions that need a typed text: the channel's name, else the topic's name, or `POLICIES`."""

POLICIES: Final = "policies"
OF_POLICIES: Final = ("set_policies", "drop_policies")
OWN_STEPS: Final = ("message/", "channel/seek", "client/close", POLICIES, "drain")
"""Beginnings of steps that Go's nsqd does not support."""

ALWAYS_TOLD: Final = ("pause_", "unpause_", "empty_")
CHANNEL: Final = "_channel"


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
    topic: str
    channel: str = ""
    node: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    typed: str = ""
    document: bytes = b""


Do = Callable[[Fleet, ActionRequest], Awaitable[Report]]


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
        do = DOING.get(order.action)
        if do is None:
            raise HttpError(400, "INVALID_ACTION")
        who = self._access.require(request, ACTION_ROLES[order.action])
        if order.action == "seek_channel" and Role.ADMINISTER not in who.roles:
            # Skipping unfinished messages has the effect of emptying.
            order = replace(order, arguments={**order.arguments, "may_skip": False})
        if why := _mistake(order, must_type):
            raise HttpError(400, why)
        if await self._audit.unavailable():
            raise HttpError(503, "AUDIT_UNAVAILABLE")
        try:
            report = await do(self._fleet, order)
        except UnknownNode as error:
            await self._write_down(request, order, "failed", f"{error} is not a known node")
            raise HttpError(404, "NODE_NOT_FOUND") from None
        except ValueError as error:
            await self._write_down(request, order, "failed", str(error))
            is_refused = isinstance(error, policies.DocumentRefused)
            code = f"{policies.REFUSED}: {error}" if is_refused else "INVALID_ARGUMENT"
            raise HttpError(400, code) from None
        await self._write_down(request, _written(order, report), report.result, report.text)
        self._notify(request, who, order, report)
        return report

    async def _write_down(
        self, request: web.BaseRequest, order: ActionRequest, outcome: Outcome, detail: str
    ) -> None:
        about = {name: getattr(order, name) for name in ("topic", "channel", "node", "arguments")}
        entry = self._access.entry(request, order.action, outcome, detail=detail, **about)
        await self._audit.record(entry)

    def _notify(
        self, request: web.BaseRequest, who: Identity, order: ActionRequest, report: Report
    ) -> None:
        # As in NSQ, which notifies of a pause, an unpause and an emptying even if they failed.
        if report.failed and not order.action.startswith(ALWAYS_TOLD):
            return
        actions = [order.action]
        # NSQ creates the topic first, and notifies of both.
        if order.action == "create_channel":
            actions.insert(0, "create_topic")
        for action in actions:
            self._notifier.queue(
                request,
                action,
                topic=order.topic,
                channel="" if action == "create_topic" else order.channel,
                node=order.node,
                user=who.name if who.via in ("header", "token") else "",
                remote=self._access.remote(request),
            )


def error_of(step: Step) -> str:
    """Return why a step failed; a readable text if the node is a Go nsqd without this feature."""
    is_gos = step.step.startswith(OWN_STEPS) and policies.is_gos(step.error)
    return policies.GO_NODE if is_gos else step.error


def _written(order: ActionRequest, report: Report) -> ActionRequest:
    """The order for the audit log; for policies with the number of changed settings."""
    if order.action not in OF_POLICIES:
        return order
    return replace(order, arguments={**order.arguments, "changes": policies.changed(report)})


def _mistake(order: ActionRequest, must_type: bool) -> str:
    """Return the error code of an invalid order; "" if it is valid."""
    if order.action in OF_POLICIES:
        return "NAME_NOT_TYPED" if must_type and order.typed != POLICIES else ""
    if order.action in OF_NODE:
        return "" if order.node else "INVALID_ARGUMENT"
    is_making = order.action.startswith("create_")
    if not order.topic or (is_making and not is_valid_name(order.topic)):
        return "INVALID_TOPIC"
    if order.action.endswith(CHANNEL) and not order.channel:
        return "INVALID_CHANNEL"
    if is_making and order.channel and not is_valid_name(order.channel):
        return "INVALID_CHANNEL"
    typed_name = order.channel if order.action.endswith(CHANNEL) else order.topic
    if must_type and order.action in TYPED and order.typed != typed_name:
        return "NAME_NOT_TYPED"
    return ""


def _named(do: Callable[[Fleet, str, str], Awaitable[Report]], *, of_channel: bool) -> Do:
    def run(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
        return do(fleet, order.topic, order.channel if of_channel else "")

    return run


def _seek(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    to, nodes = order.arguments.get("to"), order.arguments.get("nodes", ())
    if not isinstance(to, str) or not to or isinstance(nodes, str):
        raise ValueError("seek_channel needs `to` and optionally `nodes`, a list")
    may_skip = bool(order.arguments.get("may_skip", True))
    return cluster.seek(fleet, order.topic, order.channel, to, may_skip=may_skip, nodes=nodes)


def _drain(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    leave = order.arguments.get("exit", False)
    if not isinstance(leave, bool):
        raise ValueError("`exit` must be true or false")
    return draining.begin(fleet, order.node, leave=leave)


async def _close(fleet: Fleet, order: ActionRequest) -> Report:
    client = order.arguments.get("client")
    if not isinstance(client, str) or not client:
        raise ValueError("`client` must be the address of a connection")
    node = await fleet.node(order.node)
    answers, errors = await fleet.each(
        [node], lambda n: fleet.post(n, "/client/close", client=client)
    )
    report = Report()
    report.add("client/close", [node.address], answers, errors)
    return report


def _messages(verb: str) -> Do:
    def run(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
        ids, to = order.arguments.get("ids"), order.arguments.get("to", "")
        if not isinstance(ids, dict) or not ids or not isinstance(to, str):
            raise ValueError("`ids` must map nodes to message ids")
        if verb == "copy" and not is_valid_name(to):
            raise ValueError("`to` must be the name of a topic")
        return cluster.messages(fleet, verb, order.topic, order.channel, ids, to=to)

    return run


def _publish(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    if not order.document:
        raise ValueError("a message needs a body")
    return cluster.publish(fleet, order.topic, order.node, order.document)


def _set_policies(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    if POLICIES not in order.arguments:
        raise ValueError("the document with the policies is missing")
    return policies.put(fleet, order.document)


DOING: Final[dict[str, Do]] = {
    **{
        f"{verb}_{what}": _named(do, of_channel=what == "channel")
        for verb, do in (
            ("create", cluster.create),
            ("delete", cluster.delete),
            ("pause", cluster.pause),
            ("unpause", cluster.unpause),
            ("empty", cluster.empty),
        )
        for what in ("topic", "channel")
    },
    "tombstone_topic_producer": lambda fleet, order: cluster.tombstone(
        fleet, order.topic, order.node
    ),
    "drain_node": _drain,
    "undrain_node": lambda fleet, order: draining.end(fleet, order.node),
    "close_client": _close,
    "seek_channel": _seek,
    "publish_message": _publish,
    "set_policies": _set_policies,
    "drop_policies": lambda fleet, _order: policies.drop(fleet),
    **{
        f"{verb}_message": _messages(verb)
        for verb in ("requeue", "finish", "cancel", "copy", "redrive")
    },
}
