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
from typing import Any, Final, TypeVar

from aiohttp import web

from sparq.cluster import actions as cluster
from sparq.cluster import draining, policies
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.audit_file import Outcome
from sparq.daemon.access.roles import Role
from sparq.daemon.http import HttpError
from sparq.nsqadmin.access import ACTION_ROLES, AdminAccess, Identity
from sparq.nsqadmin.notify import Notifier
from sparq.protocol.names import is_valid_name

T = TypeVar("T")

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

    def argument(self, name: str, kind: type[T], default: T | None = None) -> T:
        """An argument.

        Raises:
            ValueError: it is missing or empty, or has another type.
        """
        value = self.arguments.get(name, default)
        if not isinstance(value, kind) or value in ("", {}):
            raise ValueError(f"{self.action} needs `{name}`, of type {kind.__name__}")
        return value


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
        if order.action not in DOING:
            raise HttpError(400, "INVALID_ACTION")
        who = self._access.require(request, ACTION_ROLES[order.action])
        if order.action == "seek_channel" and Role.ADMINISTER not in who.roles:
            # Skipping unfinished messages has the effect of emptying.
            order = replace(order, arguments={**order.arguments, "may_skip": False})
        if why := _mistake(order, must_type):
            raise HttpError(400, why)
        if await self._audit.unavailable():
            raise HttpError(503, "AUDIT_UNAVAILABLE")
        failure, arguments = None, order.arguments
        try:
            report = await DOING[order.action](self._fleet, order)
            detail = report.text
            if order.action in OF_POLICIES:
                arguments = {**arguments, "changes": policies.changed(report)}
        except UnknownNode as error:
            report, detail = Report(), f"{error} is not a known node"
            failure = HttpError(404, "NODE_NOT_FOUND")
        except policies.DocumentRefused as error:
            report, detail = Report(), str(error)
            failure = HttpError(400, f"{policies.REFUSED}: {error}")
        except ValueError as error:
            report, detail = Report(), str(error)
            failure = HttpError(400, "INVALID_ARGUMENT")
        about: dict[str, Any] = {"topic": order.topic, "channel": order.channel, "node": order.node}
        outcome: Outcome = "failed" if failure else report.result
        about |= {"arguments": arguments, "detail": detail}
        await self._audit.record(self._access.entry(request, order.action, outcome, **about))
        if failure is not None:
            raise failure
        self._notify(request, who, order, report)
        return report

    def _notify(
        self, request: web.BaseRequest, who: Identity, order: ActionRequest, report: Report
    ) -> None:
        # As in NSQ, which notifies of a pause, an unpause and an emptying even if they failed.
        if not self._notifier.endpoint or (
            report.failed and not order.action.startswith(ALWAYS_TOLD)
        ):
            return
        remote = self._access.decide(request).shown
        about = {"topic": order.topic, "node": order.node, "remote": remote}
        about["user"] = who.name if who.via in ("header", "token") else ""
        # NSQ creates the topic first, and notifies of both.
        if order.action == "create_channel":
            self._notifier.queue(request, "create_topic", **about)
        self._notifier.queue(request, order.action, channel=order.channel, **about)


def error_of(step: StepOutcome) -> str:
    """Return why a step failed; a readable text if the node is a Go nsqd without this feature."""
    is_gos = step.step.startswith(OWN_STEPS) and policies.is_gos(step.error)
    return policies.GO_NODE if is_gos else step.error


def _is_of_channel(order: ActionRequest) -> bool:
    return order.action.endswith("_channel")


def _mistake(order: ActionRequest, must_type: bool) -> str:
    """Return the error code of an invalid order; "" if it is valid."""
    is_valid: Callable[[str], bool] = is_valid_name if order.action.startswith("create_") else bool
    typed_name = order.channel if _is_of_channel(order) else order.topic
    if order.action in OF_POLICIES:
        typed_name = POLICIES
    elif order.action in OF_NODE:
        return "" if order.node else "INVALID_ARGUMENT"
    elif not is_valid(order.topic):
        return "INVALID_TOPIC"
    elif _is_of_channel(order) and not is_valid(order.channel):
        return "INVALID_CHANNEL"
    is_wrong = must_type and order.action in TYPED and order.typed != typed_name
    return "NAME_NOT_TYPED" if is_wrong else ""


def _create(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    return cluster.create(fleet, order.topic, order.channel if _is_of_channel(order) else "")


def _change(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    channel = order.channel if _is_of_channel(order) else ""
    return cluster.change(order.action.partition("_")[0], fleet, order.topic, channel)


def _seek(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    to, may_skip = order.argument("to", str), order.argument("may_skip", bool, True)
    nodes = order.argument("nodes", list, [])
    of = (fleet, order.topic, order.channel, to)
    return cluster.seek(*of, may_skip=may_skip, nodes=nodes)


def _of_messages(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    verb, to = order.action.partition("_")[0], ""
    if verb == "copy":
        to = order.argument("to", str)
        if not is_valid_name(to):
            raise ValueError("`to` must be the name of a topic")
    ids = order.argument("ids", dict)
    return cluster.messages(fleet, verb, order.topic, order.channel, ids, to=to)


def _set_policies(fleet: Fleet, order: ActionRequest) -> Awaitable[Report]:
    if POLICIES not in order.arguments:
        raise ValueError("the document with the policies is missing")
    return policies.replace(fleet, order.document)


DOING: Final[dict[str, Callable[[Fleet, ActionRequest], Awaitable[Report]]]] = {
    "create_topic": _create,
    "create_channel": _create,
    **dict.fromkeys((*OF_TOPIC, *OF_CHANNEL), _change),
    TOMBSTONE: lambda fleet, order: cluster.tombstone(fleet, order.topic, order.node),
    "drain_node": lambda fleet, order: draining.begin(
        fleet, order.node, leave=order.argument("exit", bool, False)
    ),
    "undrain_node": lambda fleet, order: draining.end(fleet, order.node),
    "close_client": lambda fleet, order: cluster.close_client(
        fleet, order.node, order.argument("client", str)
    ),
    "seek_channel": _seek,
    "publish_message": lambda fleet, order: cluster.publish(
        fleet, order.topic, order.node, order.document
    ),
    "set_policies": _set_policies,
    "drop_policies": lambda fleet, _: policies.drop(fleet),
    **dict.fromkeys(OF_MESSAGES, _of_messages),
}
