"""The types of the API's answers and bodies, from which its document has the schemas.

Unknown values and infinite numbers are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sparq.cluster.draining import DrainProgress, NodeRemainder
from sparq.cluster.rows import ChannelRow, Reader, TopicRow
from sparq.nsqadmin.access.roles import ACTION_ROLES
from sparq.nsqadmin.messages import checked
from sparq.nsqadmin.messages.dead_letters import FailureHistory
from sparq.nsqadmin.watch import rows

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Errors: TypeAlias = dict[str, str]
Names: TypeAlias = list[str]
References: TypeAlias = Annotated[list[str], Meta(description="`NODE/ID` of each message")]

OF_API: Final = {
    "ChannelRow": "Channel",
    "TopicRow": "Topic",
    "NodeRow": "Node",
    NodeRemainder.__name__: "Left",
    DrainProgress.__name__: "Drain",
    FailureHistory.__name__: "Mark",
    "ApiReport": "Report",
}
"""Names of types that have another name in the document."""


class Answer(Struct, forbid_unknown_fields=True):
    """An object with exactly its fields."""


class Error(Answer):
    """The answer to a refused request."""

    message: str


class Stamp(Answer):
    """Part of answers that come from a snapshot of the cluster."""

    number: Count
    time: float


class Page(Stamp):
    """A page of rows."""

    total: Count
    offset: Count
    limit: Count


class ChannelPage(Page):
    """Channels."""

    rows: list[ChannelRow]


class TopicPage(Page):
    """Topics."""

    rows: list[TopicRow]


class NodePage(Page):
    """Nodes."""

    rows: list[rows.NodeRow]


class ClientPage(Page):
    """Consumers."""

    rows: list[rows.ClientGroup]


class Attention(Stamp):
    """What needs attention."""

    notices: list[rows.Notice]


class Overview(Attention):
    """The cluster."""

    totals: rows.Totals
    lookupds: list[rows.Lookupd]
    errors: Errors
    deepest: list[ChannelRow]
    slowest: list[ChannelRow]
    busiest: list[TopicRow]
    has_go: bool


class TopicAtNode(Answer):
    """A topic at one node."""

    node: str
    state: str
    topic: TopicRow


class ChannelAtNode(Answer):
    """A channel at one node."""

    node: str
    state: str
    channel: ChannelRow


class TopicDetail(Stamp):
    """One topic."""

    topic: TopicRow
    nodes: list[TopicAtNode]
    channels: list[ChannelRow]
    latency: Any
    errors: Errors


class ChannelDetail(Stamp):
    """One channel."""

    channel: ChannelRow
    nodes: list[ChannelAtNode]
    clients: list[rows.ClientGroup]
    delivery: dict[str, Count]
    latency: Any
    errors: Errors


class NodeDetail(Stamp):
    """One node."""

    node: rows.NodeRow
    topics: TopicPage
    channels: ChannelPage


History: TypeAlias = dict[str, list[float | None]]
"""The times and the figures of the last hour."""


class Message(checked.Message, kw_only=True):
    """A message as its node shows it (docs/http.md), and the node's address."""

    node: str
    cut: bool = False
    since: str = ""


class FromNodes(Answer):
    """Part of answers that come from nodes: which could not answer, and why."""

    errors: Errors
    unable: Names
    absent: Errors


class Messages(FromNodes):
    """One message, from each node that has it."""

    messages: list[Message]


class MessagePage(Messages):
    """Messages of a queue."""

    next: str | None
    total: int | None
    older_are_gone: bool
    reach: dict[str, dict[str, str | None]]


class SearchPage(Messages):
    """One step of a search."""

    next: str | None
    done: bool
    progress: Annotated[float, Meta(ge=0, le=1)]
    scanned: Count
    scanned_bytes: Count
    unsearched: Count


class LetterPage(MessagePage):
    """Dead letters; `marks` by `node/id`."""

    origin: str
    marks: dict[str, FailureHistory]


class Bucket(Answer):
    """Number of messages from a time on."""

    time: str
    count: Count


class Times(FromNodes):
    """Numbers of messages by publish time."""

    begin: str | None = msgspec.field(name="from")
    to: str | None
    buckets: list[Bucket]
    cursors: Errors


class Preview(FromNodes):
    """The effect of a seek."""

    again: Count
    waiting: Count
    skipped: Count
    older_are_gone: bool
    nodes: list[dict[str, Any]]


class Outcome(Answer):
    """The outcome of one step at one daemon."""

    address: str
    step: str
    error: str
    answer: Any


class ApiReport(Answer):
    """What an action did."""

    result: Literal["done", "partly", "failed"]
    failed: str
    outcomes: list[Outcome]
    warnings: Errors


class Policies(Answer):
    """By node, policies by source and flags, or the settings of a topic or channel by key."""

    nodes: dict[str, dict[str, Any]]
    errors: Errors
    unable: Names
    differ: bool = False


class AuditPage(Answer):
    """Entries of the audit log."""

    entries: list[dict[str, Any]]
    next: str | None
    scanned_bytes: Count


class Dismissed(Answer):
    """A dismissed node."""

    node: str


class SentBack(Answer):
    """How many dead letters were sent back."""

    to: str
    sent: Count
    refused: Errors
    errors: Errors
    more: bool


class Action(Struct):
    """An action."""

    action: Annotated[str, Meta(extra_json_schema={"enum": sorted(ACTION_ROLES)})]
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
    body: Annotated[str, Meta(description="to publish: the message, to `node`")] = ""
    encoding: Annotated[Literal["text", "base64"], Meta(description="of `body`; default: text")] = (
        "text"
    )


class Seek(Struct):
    """A move of a channel."""

    topic: str
    channel: str
    to: str = ""
    nodes: Names = []


class PolicyDocument(Struct, forbid_unknown_fields=True):
    """Policies: patterns, and settings by key (docs/policies.md)."""

    policies: list[dict[str, str | int | bool]]


class SendBack(Struct):
    """Dead letters to send back."""

    topic: str
    channel: Annotated[str, Meta(description="where the letters wait; default: redrive")] = ""
    to: Annotated[
        str, Meta(description="publish copies to this topic instead, for all of its channels")
    ] = ""
    messages: References = []
    all: Annotated[
        bool, Meta(description="send all that were not sent back yet, at most 10,000")
    ] = False


def schemas_of(types: Iterable[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The schemas of these types, and by name those that they refer to."""
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    rows_of = {name for name, kind in vars(rows).items() if is_dataclass(kind)}
    rows_of |= {kind.__name__ for kind in (ChannelRow, TopicRow, Reader)}
    for name in rows_of & components.keys():  # a row always has all of its fields
        components[name]["required"] = [*components[name]["properties"]]
        components[name]["additionalProperties"] = False
    text = json.dumps([found, components])
    for name, shown in OF_API.items():
        text = text.replace(f'"{name}"', f'"{shown}"').replace(f'/{name}"', f'/{shown}"')
    renamed: tuple[list[Any], dict[str, Any]] = json.loads(text)
    return renamed


def plain(value: Any) -> Any:
    """Convert a value to JSON values: dataclasses become objects, infinite numbers and nan None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(plain(each) for each in value)
    return [plain(each) for each in value]
