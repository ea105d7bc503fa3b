"""Actions that users request: checks rights, performs, writes the audit log, notifies.

1. The role of the action itself is required (`ROLES`), whatever role the route required.
2. To delete messages, topics or channels, the user must type the name. To change policies, which
   keep messages and have no name, the user must type the word `policies`. NSQ's own routes have no
   such field and pass `must_type=False`.
3. If an audit log is configured but cannot be written, no action is performed.
4. An action is written to the audit log before its answer is sent, even if it failed. Notifications
   follow NSQ: a creation, a deletion and a tombstone are notified only if the action could be sent
   to the cluster's daemons.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final, Literal, TypeAlias

from aiohttp import web
from msgspec import Meta, Struct

from sparq.cluster import actions as cluster
from sparq.cluster import draining, policies
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.daemon.access.audit import Outcome, entry_of
from sparq.daemon.access.rules import Role
from sparq.daemon.http import HttpError
from sparq.nsqadmin.messages import ID
from sparq.nsqadmin.services import Services
from sparq.protocol.names import is_valid_name

TOMBSTONE: Final = "tombstone_topic_producer"
OF_NODE: Final = ("drain_node", "undrain_node", "close_client")
OF_TOPIC: Final = ("pause_topic", "unpause_topic", "empty_topic", "delete_topic")
OF_CHANNEL: Final = ("pause_channel", "unpause_channel", "empty_channel", "delete_channel")
OF_MESSAGES: Final = (
    *("requeue_message", "finish_message", "cancel_message", "copy_message", "redrive_message"),
)
OF_POLICIES: Final = ("set_policies", "drop_policies")
POLICIES: Final = "policies"

_OPERATES: Final = (
    *("create_topic", "create_channel", "pause_topic", "pause_channel", "unpause_topic"),
    *("unpause_channel", "seek_channel", "requeue_message", "redrive_message"),
    # As nsqd's own table has it: the client connects again.
    "close_client",
)
# They delete messages, topics or channels. Without a policy nsqd may delete messages that it kept,
# and draining a node may end its process.
_ADMINISTERS: Final = (
    *("empty_topic", "empty_channel", "delete_topic", "delete_channel", TOMBSTONE),
    *("finish_message", "cancel_message", *OF_POLICIES, "drain_node", "undrain_node"),
)
ROLES: Final = {
    **dict.fromkeys(_OPERATES, Role.OPERATE),
    **dict.fromkeys(_ADMINISTERS, Role.ADMINISTER),
    "publish_message": Role.PUBLISH,
    # A copy reads bodies and publishes them to another topic.
    "copy_message": Role.OPERATE | Role.BODIES | Role.PUBLISH,
}
"""The role that each action needs. Names are those of NSQ's notifications where NSQ has one."""

TYPED: Final = {action for action in _ADMINISTERS if not action.endswith(("_node", "_message"))}
"""Actions that need a typed text: the channel's name, else the topic's name, or `POLICIES`."""

NEEDED: Final = {
    **dict.fromkeys(OF_MESSAGES, ("messages",)),
    "copy_message": ("messages", "to"),
    "seek_channel": ("to",),
    "close_client": ("client",),
    "publish_message": ("body",),
    "set_policies": ("body",),
}
"""The fields that an action cannot do without, besides its topic, channel or node."""

OWN_STEPS: Final = ("message/", "channel/seek", "client/close", POLICIES, "drain")
"""Beginnings of steps that Go's nsqd does not support."""

ALWAYS_TOLD: Final = ("pause_", "unpause_", "empty_")

References: TypeAlias = Annotated[list[str], Meta(description="`NODE/ID` of each message")]


class ActionRequest(Struct, frozen=True):
    """An action that a user requests."""

    action: Annotated[str, Meta(extra_json_schema={"enum": sorted(ROLES)})]
    topic: str = ""
    channel: str = ""
    node: Annotated[str, Meta(description="HOST:PORT of its HTTP")] = ""
    typed: Annotated[
        str,
        Meta(description="to confirm a deletion: the channel's name, or else the topic's"),
    ] = ""
    messages: References | None = None
    to: Annotated[str | None, Meta(description="for a copy: the topic; for a seek: the place")] = (
        None
    )
    nodes: Annotated[list[str] | None, Meta(description="for a seek: only these nodes")] = None
    client: Annotated[
        str | None, Meta(description="to close a connection: its address at `node`")
    ] = None
    body: Annotated[
        str, Meta(description="to publish: the message, to `node`; of policies: the document")
    ] = ""
    encoding: Annotated[Literal["text", "base64"], Meta(description="of `body`; default: text")] = (
        "text"
    )
    exit: Annotated[bool, Meta(description="to drain: exit once nothing is left")] = False

    def __post_init__(self) -> None:
        """Raises ValueError: a message is not named by node and id, or the body is not base64."""
        _ = self.ids, self.document

    @property
    def ids(self) -> dict[str, list[str]]:
        """The ids of the messages by node."""
        found: dict[str, list[str]] = {}
        for each in self.messages or ():
            node, _, message_id = each.rpartition("/")
            if not node:
                raise ValueError("name each message by node and id: NODE/ID")
            if not ID.fullmatch(message_id):
                raise ValueError("a message id has 16 hexadecimal digits")
            found.setdefault(node, []).append(message_id)
        return found

    @property
    def document(self) -> bytes:
        """The body."""
        body = self.body.encode()
        return base64.b64decode(body, validate=True) if self.encoding == "base64" else body

    def mistake(self, must_type: bool) -> str:
        """The error code of an invalid name, or of a wrong typed one; "": there is none."""
        is_valid = is_valid_name if self.action.startswith("create_") else bool
        typed_name = self.topic
        if self.action in OF_POLICIES:
            typed_name = POLICIES
        elif self.action in OF_NODE:
            return "" if self.node else "INVALID_ARGUMENT"
        elif not is_valid(self.topic):
            return "INVALID_TOPIC"
        elif self.action.endswith("_channel"):
            typed_name = self.channel
            if not is_valid(self.channel):
                return "INVALID_CHANNEL"
        is_wrong = must_type and self.action in TYPED and self.typed != typed_name
        return "NAME_NOT_TYPED" if is_wrong else ""

    def check_arguments(self) -> None:
        """Raises ValueError: an argument is missing, or a copy's topic has no valid name."""
        for name in NEEDED.get(self.action, ()):
            if not getattr(self, name):
                raise ValueError(f"{self.action} needs `{name}`")
        if self.action == "copy_message" and not is_valid_name(self.to or ""):
            raise ValueError("`to` must be the name of a topic")

    async def arguments(self) -> dict[str, Any]:
        """What the audit log has of it, besides its names."""
        told = {"ids": self.ids, "to": self.to, "nodes": self.nodes, "client": self.client}
        found: dict[str, Any] = {name: value for name, value in told.items() if value}
        if self.action == "drain_node":
            found["exit"] = self.exit
        elif self.action == "publish_message":
            found["bytes"] = len(self.document)
        elif self.action in OF_POLICIES:
            found["policies"] = await policies.count(self.document) if self.body else 0
        return found

    async def perform(self, fleet: Fleet, *, may_skip: bool) -> Report:
        """Perform it at the daemons; `may_skip`: whether a seek may skip unfinished messages.

        Raises:
            UnknownNode: the cluster has no such node.
            ValueError: an argument is missing, or the daemons cannot do it.
        """
        self.check_arguments()
        verb, _, kind = self.action.partition("_")
        topic, node, to = self.topic, self.node, self.to or ""
        channel = self.channel if kind in ("channel", "message") else ""
        match verb:
            case "create":
                return await cluster.create(fleet, topic, channel)
            case "pause" | "unpause" | "empty" | "delete":
                return await cluster.change(verb, fleet, topic, channel)
            case "tombstone":
                return await cluster.tombstone(fleet, topic, node)
            case "seek":
                nodes = self.nodes or ()
                return await cluster.seek(fleet, topic, channel, to, may_skip=may_skip, nodes=nodes)
            case "publish":
                return await cluster.at_node(fleet, node, "pub", self.document, topic=topic)
            case "close":
                return await cluster.at_node(fleet, node, "client/close", client=self.client or "")
            case "drain":
                return await draining.begin(fleet, node, leave=self.exit)
            case "undrain":
                return await draining.end(fleet, node)
            case "set":
                return await policies.replace(fleet, self.document)
            case "drop":
                return await policies.send(fleet, None)
        return await cluster.messages(fleet, verb, topic, channel, dict(self.ids), to=to)


async def perform(
    services: Services, request: web.BaseRequest, order: ActionRequest, *, must_type: bool = True
) -> Report:
    """Perform an action; returns a report of its steps.

    With `must_type`, actions that cannot be undone need the typed name (`TYPED`).

    Raises:
        HttpError: nothing was done: 401 or 403, the role is missing; 400 INVALID_ACTION,
            INVALID_TOPIC, INVALID_CHANNEL, INVALID_ARGUMENT, INVALID_POLICIES, NAME_NOT_TYPED;
            404 NODE_NOT_FOUND; 503 AUDIT_UNAVAILABLE.
    """
    if order.action not in ROLES:
        raise HttpError(400, "INVALID_ACTION")
    who = services.access.require(request, ROLES[order.action])
    if why := order.mistake(must_type):
        raise HttpError(400, why)
    if await services.audit.unavailable():
        raise HttpError(503, "AUDIT_UNAVAILABLE")
    report, failure, arguments = Report(), None, await order.arguments()
    # Skipping unfinished messages has the effect of emptying.
    may_skip = order.action != "seek_channel" or who.may(Role.ADMINISTER)
    if not may_skip:
        arguments["may_skip"] = False
    try:
        report = await order.perform(services.fleet, may_skip=may_skip)
        detail = report.text
        if order.action in OF_POLICIES:
            arguments["changes"] = policies.changed(report)
    except UnknownNode as error:
        detail, failure = f"{error} is not a known node", HttpError(404, "NODE_NOT_FOUND")
    except policies.DocumentRefused as error:
        detail, failure = str(error), HttpError(400, f"{policies.REFUSED}: {error}")
    except ValueError as error:
        detail, failure = str(error), HttpError(400, "INVALID_ARGUMENT")
    outcome: Outcome = "failed" if failure else report.result
    about = {"topic": order.topic, "channel": order.channel, "node": order.node}
    entry = entry_of(who, order.action, outcome, arguments=arguments, detail=detail, **about)
    await services.audit.record(entry)
    if failure is not None:
        raise failure
    # As in NSQ, which notifies of a pause, an unpause and an emptying even if they failed.
    is_told = not report.failed or order.action.startswith(ALWAYS_TOLD)
    if services.notifier.endpoint and is_told:
        # NSQ creates the topic first, and notifies of both.
        if order.action == "create_channel":
            services.notifier.queue(request, who, "create_topic", topic=order.topic)
        services.notifier.queue(request, who, order.action, **about)
    return report


def error_of(step: StepOutcome) -> str:
    """Return why a step failed; a readable text if the node is a Go nsqd without this feature."""
    is_gos = step.step.startswith(OWN_STEPS) and policies.is_gos(step.error)
    return policies.GO_NODE if is_gos else step.error
