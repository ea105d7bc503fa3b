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

from sparq.cluster.rows import ChannelRow, Reader, TopicRow
from sparq.nsqadmin.access.roles import ACTION_ROLES
from sparq.nsqadmin.messages import checked
from sparq.nsqadmin.messages.dead_letters import FailureHistory
from sparq.nsqadmin.watch import rows

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Errors: TypeAlias = dict[str, str]
Names: TypeAlias = list[str]
References: TypeAlias = Annotated[list[str], Meta(description="`NODE/ID` of each message")]

OF_API: Final = {"NodeRemainder": "Left", "DrainProgress": "Drain", "FailureHistory": "Mark"}
"""Names of types that have another name in the document; others lose `Api` and `Row`."""


class ApiAnswer(Struct, forbid_unknown_fields=True):
    """An object with exactly its fields."""


class ApiError(ApiAnswer):
    """The answer to a refused request."""

    message: str


class ApiStamp(ApiAnswer):
    """Part of answers that come from a snapshot of the cluster."""

    number: Count
    time: float


class ApiPage(ApiStamp):
    """A page of rows."""

    total: Count
    offset: Count
    limit: Count


class ApiChannelPage(ApiPage):
    """Channels."""

    rows: list[ChannelRow]


class ApiTopicPage(ApiPage):
    """Topics."""

    rows: list[TopicRow]


class ApiNodePage(ApiPage):
    """Nodes."""

    rows: list[rows.NodeRow]


class ApiClientPage(ApiPage):
    """Consumers."""

    rows: list[rows.ClientGroup]


class ApiAttention(ApiStamp):
    """What needs attention."""

    notices: list[rows.Notice]


class ApiOverview(ApiAttention):
    """The cluster."""

    totals: rows.Totals
    lookupds: list[rows.Lookupd]
    errors: Errors
    deepest: list[ChannelRow]
    slowest: list[ChannelRow]
    busiest: list[TopicRow]
    has_go: bool


class ApiTopicAtNode(ApiAnswer):
    """A topic at one node."""

    node: str
    state: str
    topic: TopicRow


class ApiChannelAtNode(ApiAnswer):
    """A channel at one node."""

    node: str
    state: str
    channel: ChannelRow


class ApiTopicDetail(ApiStamp):
    """One topic."""

    topic: TopicRow
    nodes: list[ApiTopicAtNode]
    channels: list[ChannelRow]
    latency: Any
    errors: Errors


class ApiChannelDetail(ApiStamp):
    """One channel."""

    channel: ChannelRow
    nodes: list[ApiChannelAtNode]
    clients: list[rows.ClientGroup]
    delivery: dict[str, Count]
    latency: Any
    errors: Errors


class ApiNodeDetail(ApiStamp):
    """One node."""

    node: rows.NodeRow
    topics: ApiTopicPage
    channels: ApiChannelPage


History: TypeAlias = dict[str, list[float | None]]
"""The times and the figures of the last hour."""


class ApiMessage(checked.NodeMessage, kw_only=True):
    """A message as its node shows it (docs/http.md), and the node's address."""

    node: str
    cut: bool = False
    since: str = ""


class ApiFromNodes(ApiAnswer):
    """Part of answers that come from nodes: which could not answer, and why."""

    errors: Errors
    unable: Names
    absent: Errors


class ApiMessages(ApiFromNodes):
    """One message, from each node that has it."""

    messages: list[ApiMessage]


class ApiMessagePage(ApiMessages):
    """Messages of a queue."""

    next: str | None
    total: int | None
    older_are_gone: bool
    reach: dict[str, dict[str, str | None]]


class ApiSearchPage(ApiMessages):
    """One step of a search."""

    next: str | None
    done: bool
    progress: Annotated[float, Meta(ge=0, le=1)]
    scanned: Count
    scanned_bytes: Count
    unsearched: Count


class ApiLetterPage(ApiMessagePage):
    """Dead letters; `marks` by `node/id`."""

    origin: str
    marks: dict[str, FailureHistory]


class ApiBucket(ApiAnswer):
    """Number of messages from a time on."""

    time: str
    count: Count


class ApiTimes(ApiFromNodes):
    """Numbers of messages by publish time."""

    begin: str | None = msgspec.field(name="from")
    to: str | None
    buckets: list[ApiBucket]
    cursors: Errors


class ApiPreview(ApiFromNodes):
    """The effect of a seek."""

    again: Count
    waiting: Count
    skipped: Count
    older_are_gone: bool
    nodes: list[dict[str, Any]]


class ApiOutcome(ApiAnswer):
    """The outcome of one step at one daemon."""

    address: str
    step: str
    error: str
    answer: Any


class ApiReport(ApiAnswer):
    """What an action did."""

    result: Literal["done", "partly", "failed"]
    failed: str
    outcomes: list[ApiOutcome]
    warnings: Errors


class ApiPolicies(ApiAnswer):
    """By node, policies by source and flags, or the settings of a topic or channel by key."""

    nodes: dict[str, dict[str, Any]]
    errors: Errors
    unable: Names
    differ: bool = False


class ApiAuditPage(ApiAnswer):
    """Entries of the audit log."""

    entries: list[dict[str, Any]]
    next: str | None
    scanned_bytes: Count


class ApiDismissed(ApiAnswer):
    """A dismissed node."""

    node: str


class ApiSentBack(ApiAnswer):
    """How many dead letters were sent back."""

    to: str
    sent: Count
    refused: Errors
    errors: Errors
    more: bool


class ApiAction(Struct):
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


class ApiSeek(Struct):
    """A move of a channel."""

    topic: str
    channel: str
    to: str = ""
    nodes: Names = []


class ApiPolicyDocument(Struct, forbid_unknown_fields=True):
    """Policies: patterns, and settings by key (docs/policies.md)."""

    policies: list[dict[str, str | int | bool]]


class ApiSendBack(Struct):
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
    for name in components:
        shown = OF_API.get(name) or name.removeprefix("Api").removesuffix("Row")
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
