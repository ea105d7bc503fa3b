"""JSON schemas of the API's answers, generated from the dataclasses that it shows.

1. A field's type gives its schema: `float | None` is a number or null. Unknown values and infinite
   numbers are null.
2. `SCHEMAS` has all schemas by name; a name in another schema is a reference.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, get_args, get_origin

from sparq.cluster.draining import DrainProgress, NodeRemainder
from sparq.nsqadmin.access.roles import ACTION_ROLES
from sparq.nsqadmin.messages.dead_letters import FailureHistory
from sparq.nsqadmin.watch import rows

Schema = dict[str, Any]

_SIMPLE: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def reference(name: str) -> Schema:
    """A reference to a schema of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(of: Schema | str) -> Schema:
    """Schema of a list."""
    return {"type": "array", "items": reference(of) if isinstance(of, str) else of}


def by_key(of: Schema) -> Schema:
    """Schema of an object with any keys."""
    return {"type": "object", "additionalProperties": of}


def either(*kinds: str) -> Schema:
    """Schema of a value of one of several simple types."""
    return {"type": [*kinds]}


def thing(**properties: Schema | str) -> Schema:
    """Schema of an object with exactly these properties; a text is the name of a schema."""
    found = {name: reference(of) if isinstance(of, str) else of for name, of in properties.items()}
    return {
        "type": "object",
        "properties": found,
        "required": [*found],
        "additionalProperties": False,
    }


def of_dataclass(kind: type) -> Schema:
    """Schema of a dataclass."""
    hints = typing.get_type_hints(kind)
    return thing(**{each.name: of_type(hints[each.name]) for each in fields(kind)})


def of_type(hint: Any) -> Schema:
    """Schema of a type."""
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": [*parts]}
    if origin in (tuple, frozenset, list):
        return array(of_type(parts[0]))
    if origin in (types.UnionType, typing.Union):
        kinds = [of_type(part) for part in parts if part is not type(None)]
        return {"anyOf": [*kinds, {"type": "null"}]}
    if is_dataclass(hint) and isinstance(hint, type):
        return reference(name_of(hint))
    raise TypeError(f"no schema for {hint!r}")


def name_of(kind: type) -> str:
    """The name of a schema in the API: a `ChannelRow` is a `Channel` there."""
    return "Left" if kind is NodeRemainder else kind.__name__.removesuffix("Row")


TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
ERRORS: Final = by_key(TEXT)
ANY: Final[Schema] = {}

_MESSAGE: Final[Schema] = {
    "type": "object",
    "description": "a message as its node shows it (docs/http.md), and the node's address",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
        "node": TEXT,
        "index": TEXT,
        "time": TEXT,
        "timestamp": TEXT,
        "attempts": either("integer", "null"),
        "size": COUNT,
        "body": TEXT,
        "encoding": {"enum": ["text", "base64"]},
        "cut": FLAG,
        "state": {"enum": ["waiting", "in_flight", "deferred", "finished"]},
        "client": {"type": ["object", "null"]},
        "since": TEXT,
        "deadline": TEXT,
        "in_flight_seconds": NUMBER,
        "due": TEXT,
        "due_seconds": NUMBER,
        "letter": {
            "type": "object",
            "description": "history of a dead letter (docs/policies.md)",
            "additionalProperties": TEXT,
        },
    },
    "required": ["id", "node", "index", "time", "timestamp", "size"],
}

_ASKED: Final = {"errors": ERRORS, "unable": array(TEXT), "absent": ERRORS}
"""Part of answers that come from nodes: which nodes could not answer, and why."""

_NEXT: Final = either("string", "null")
_MESSAGES: Final = {
    "messages": array("Message"),
    "next": _NEXT,
    "total": either("integer", "null"),
    "older_are_gone": FLAG,
    "reach": by_key(by_key(either("string", "null"))),
    **_ASKED,
}
_SETTING: Final[Schema] = {
    "type": "object",
    "properties": {
        "value": either("string", "integer", "boolean"),
        "source": {"enum": ["policies", "configured", "flags"]},
        "number": {**COUNT, "description": "number of the policy within its source, from 1"},
    },
    "required": ["value", "source"],
    "additionalProperties": False,
}
_STAMP: Final = {"number": COUNT, "time": NUMBER}
"""Part of answers that come from a snapshot of the cluster: its number and time."""


def page_of(name: str) -> Schema:
    """Schema of a page of rows."""
    return thing(rows=array(name), total=COUNT, offset=COUNT, limit=COUNT, **_STAMP)


_ROWS: Final = (
    rows.ChannelRow,
    rows.TopicRow,
    rows.NodeRow,
    rows.Totals,
    rows.Notice,
    rows.ClientGroup,
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": thing(message=TEXT),
    **{name_of(kind): of_dataclass(kind) for kind in (*_ROWS, rows.Reader, rows.Lookupd)},
    "ChannelPage": page_of("Channel"),
    "TopicPage": page_of("Topic"),
    "NodePage": page_of("Node"),
    "ClientPage": page_of("ClientGroup"),
    "Attention": thing(notices=array("Notice"), **_STAMP),
    "Overview": thing(
        **_STAMP,
        totals="Totals",
        notices=array("Notice"),
        lookupds=array("Lookupd"),
        errors=ERRORS,
        deepest=array("Channel"),
        slowest=array("Channel"),
        busiest=array("Topic"),
        has_go=FLAG,
    ),
    "ChannelAtNode": thing(node=TEXT, state=TEXT, channel="Channel"),
    "TopicAtNode": thing(node=TEXT, state=TEXT, topic="Topic"),
    "TopicDetail": thing(
        **_STAMP,
        topic="Topic",
        nodes=array("TopicAtNode"),
        channels=array("Channel"),
        latency=ANY,
        errors=ERRORS,
    ),
    "ChannelDetail": thing(
        **_STAMP,
        channel="Channel",
        nodes=array("ChannelAtNode"),
        clients=array("ClientGroup"),
        delivery=by_key(COUNT),
        latency=ANY,
        errors=ERRORS,
    ),
    "NodeDetail": thing(
        **_STAMP, node="Node", topics=page_of("Topic"), channels=page_of("Channel")
    ),
    "History": {
        "type": "object",
        "properties": {"time": array(NUMBER)},
        "required": ["time"],
        "additionalProperties": array(either("number", "null")),
    },
    "Message": _MESSAGE,
    "MessagePage": thing(**_MESSAGES),
    "Messages": thing(messages=array("Message"), **_ASKED),
    "SearchPage": thing(
        messages=array("Message"),
        next=_NEXT,
        done=FLAG,
        progress={"type": "number", "minimum": 0, "maximum": 1},
        scanned=COUNT,
        scanned_bytes=COUNT,
        unsearched=COUNT,
        **_ASKED,
    ),
    "Times": {
        **thing(**_ASKED, cursors=ERRORS, buckets=array(thing(time=TEXT, count=COUNT))),
        "additionalProperties": {"type": ["string", "null"]},
    },
    "Preview": thing(
        again=COUNT,
        waiting=COUNT,
        skipped=COUNT,
        older_are_gone=FLAG,
        nodes=array({"type": "object", "required": ["node", "again", "waiting"]}),
        **_ASKED,
    ),
    "Outcome": thing(address=TEXT, step=TEXT, error=TEXT, answer=ANY),
    "Report": thing(
        result={"enum": ["done", "partly", "failed"]},
        failed=TEXT,
        outcomes=array("Outcome"),
        warnings=ERRORS,
    ),
    "Action": {
        "type": "object",
        "properties": {
            "action": {"enum": sorted(ACTION_ROLES)},
            "topic": TEXT,
            "channel": TEXT,
            "node": {**TEXT, "description": "HOST:PORT of its HTTP"},
            "typed": {
                **TEXT,
                "description": "to confirm a deletion: the channel's name, or else the topic's",
            },
            "messages": {**array(TEXT), "description": "`NODE/ID` of each message"},
            "to": {**TEXT, "description": "for a copy: the topic; for a seek: the place"},
            "nodes": {**array(TEXT), "description": "for a seek: only these nodes"},
            "client": {**TEXT, "description": "to close a connection: its address at `node`"},
            "body": {**TEXT, "description": "to publish: the message, to `node`"},
            "encoding": {"enum": ["text", "base64"], "description": "of `body`; default: text"},
        },
        "required": ["action"],
    },
    "Seek": {
        "type": "object",
        "properties": {"topic": TEXT, "channel": TEXT, "to": TEXT, "nodes": array(TEXT)},
        "required": ["topic", "channel", "to"],
    },
    "Policy": {
        "type": "object",
        "description": "patterns, and settings by key (docs/policies.md)",
        "properties": {"topic": TEXT, "channel": TEXT},
        "required": ["topic"],
        "additionalProperties": either("string", "integer", "boolean"),
    },
    "PolicyDocument": {
        "type": "object",
        "properties": {"policies": array("Policy")},
        "required": ["policies"],
    },
    "Policies": thing(
        nodes=by_key(
            thing(
                policies=array("Policy"),
                configured=array("Policy"),
                flags=by_key(either("string", "integer", "boolean")),
            )
        ),
        differ=FLAG,
        errors=ERRORS,
        unable=array(TEXT),
    ),
    "Settings": thing(
        nodes=by_key(by_key(_SETTING)),
        errors=ERRORS,
        unable=array(TEXT),
    ),
    "AuditPage": thing(
        entries=array({"type": "object", "required": ["time", "action", "outcome"]}),
        next=_NEXT,
        scanned_bytes=COUNT,
    ),
    "Dismissed": thing(node=TEXT),
    "Left": of_dataclass(NodeRemainder),
    "Drain": of_dataclass(DrainProgress),
    "Mark": of_dataclass(FailureHistory),
    "LetterPage": thing(origin=TEXT, marks=by_key(reference("Mark")), **_MESSAGES),
    "SendBack": {
        "type": "object",
        "properties": {
            "topic": TEXT,
            "channel": {**TEXT, "description": "where the letters wait; default: redrive"},
            "to": {
                **TEXT,
                "description": "publish copies to this topic instead, for all of its channels",
            },
            "messages": {**array(TEXT), "description": "`NODE/ID` of each letter"},
            "all": {**FLAG, "description": "send all that were not sent back yet, at most 10,000"},
        },
        "required": ["topic"],
    },
    "SentBack": thing(to=TEXT, sent=COUNT, refused=ERRORS, errors=ERRORS, more=FLAG),
}


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
