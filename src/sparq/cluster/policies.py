"""The policies of a cluster's nsqds (docs/policies.md): read, compared, and set at all of them.

1. Each nsqd stores its own policies. Go's nsqd has none, and answers that there is no such route.
2. Before a document is set, every nsqd checks it in a dry run. If one nsqd refuses it, nothing is
   changed.
3. Answers are not trusted: one of another form makes its node faulty.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sparq.cluster.actions import Report, places_of
from sparq.cluster.figures import Line, PoliciesResult, checked
from sparq.cluster.fleet import Fleet, Gathered

PATH: Final = "/policies"
TOML: Final = "application/toml"
JSON: Final = "application/json"

BYTES_MAX: Final = 256 << 10
"""Maximum size of a document: nsqd accepts no more."""

SOURCES: Final = {"configured": "file", "policies": "run time"}
"""Displayed name of each source of policies in nsqd's answer, in the order nsqd reads them."""

REFUSED: Final = "INVALID_POLICIES"
GO_NODE: Final = "this is NSQ's Go nsqd, which does not support this action"
NO_ROUTE: Final = r"\"NOT_FOUND\""
"""Part of NSQ's answer to an unknown path, as `UpstreamError.reason` quotes it."""

Value: TypeAlias = int | bool | Line
Policy: TypeAlias = dict[Annotated[str, Meta(pattern="^[a-z][a-z_]{0,63}$")], Value]
"""One policy of a document: patterns and settings by key; or flags."""


class Setting(Struct, omit_defaults=True):
    """The value of a setting; `number`: the policy of its source that decided it."""

    value: Value
    source: Line
    number: int | None = None


class NodePolicies(Struct):
    """An nsqd's answer: its policies by source and its flags, or the settings of a topic."""

    configured: list[Policy] = []
    policies: list[Policy] = []
    flags: Policy = {}
    settings: dict[Line, Setting] = {}


class DocumentRefused(ValueError):
    """A document is refused; the text names the nsqd and the reason."""


@dataclass(slots=True)
class PoliciesFound:
    """The policies of all nsqds.

    Attributes:
        nodes: by address, its policies by source and its flags, which apply without policies; or,
            for a topic, `Setting`s by key.
        errors: why other nodes did not answer.
        unable: addresses of Go nsqds.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unable: list[str] = field(default_factory=list)


async def read(fleet: Fleet, topic: str = "", channel: str = "") -> Gathered[dict[str, Any]]:
    """The policies of each nsqd, by its address; with a topic or channel, the effective policy.

    Returns:
        The answers of `GET /policies`; answers that are not JSON objects are errors.
    """
    nodes = await fleet.nodes()
    answers, errors = await fleet.each(
        nodes.value, lambda node: fleet.get(node, PATH, topic=topic, channel=channel)
    )
    found = {at: answer for at, answer in answers.items() if isinstance(answer, dict)}
    errors |= dict.fromkeys(answers.keys() - found.keys(), "answer is not a JSON object")
    return Gathered(found, {**nodes.errors, **errors}, failed=not found)


async def query(fleet: Fleet, topic: str = "", channel: str = "") -> PoliciesFound:
    """Fetch the policies of all nsqds, or the settings that apply to a topic or channel."""
    answers = await read(fleet, topic, channel)
    gos = sorted(address for address, why in answers.errors.items() if is_gos(why))
    errors = {address: why for address, why in answers.errors.items() if address not in gos}
    found = PoliciesFound(errors=errors, unable=gos)
    for address, answer in answers.value.items():
        try:
            told = msgspec.to_builtins(msgspec.convert(answer, NodePolicies))
        except msgspec.ValidationError as error:
            found.errors[address] = f"unreadable answer: {error}"
            continue
        settings = told.pop("settings")
        found.nodes[address] = settings if topic else told
    return found


def groups(nodes: Mapping[str, Any], *sources: str) -> list[list[str]]:
    """Group the nsqds whose policies of these sources are equal, the largest group first."""
    found: dict[str, list[str]] = {}
    for address, held in sorted(nodes.items()):
        key = json.dumps([held[source] for source in sources])
        found.setdefault(key, []).append(address)
    return sorted(found.values(), key=len, reverse=True)


async def try_out(fleet: Fleet, document: bytes | None) -> Report:
    """Report what each nsqd would change if a document were set; nothing is changed.

    The document None stands for dropping the policies that were set at run time.

    Raises:
        DocumentRefused: an nsqd refuses the document.
    """
    if document is None:
        return await drop(fleet, dry_run=True)
    if len(document) > BYTES_MAX:
        raise DocumentRefused(
            f"the document is {len(document):,} bytes long; the maximum is {BYTES_MAX:,}"
        )
    report = await put(fleet, document, kind_of(document), dry_run=True)
    for one in report.errors:
        if why := refusal(one.error):
            raise DocumentRefused(f"{one.address}: {why}")
    return report


async def replace(fleet: Fleet, document: bytes) -> Report:
    """Replace the policies that were set at run time on every nsqd.

    Raises:
        DocumentRefused: an nsqd refuses the document; nothing is changed.
    """
    tried = await try_out(fleet, document)
    # If no nsqd can do it, report their reasons instead of asking all of them again.
    return await put(fleet, document, kind_of(document), dry_run=False) if tried.done else tried


async def put(fleet: Fleet, document: bytes, content_type: str, *, dry_run: bool) -> Report:
    """Make every nsqd replace the policies set at run time with a document."""
    return await _send(fleet, document, dry_run, method="PUT", content_type=content_type)


async def drop(fleet: Fleet, *, dry_run: bool = False) -> Report:
    """Make every nsqd drop the policies set at run time."""
    return await _send(fleet, b"", dry_run, method="DELETE", content_type=JSON)


async def _send(fleet: Fleet, body: bytes, dry_run: bool, **how: str) -> Report:
    report = Report()
    nodes = await fleet.nodes()
    if report.see(nodes):
        places = places_of(nodes.value)
        how |= {"dry_run": "true"} if dry_run else {}
        await report.send(fleet, PATH[1:], places, dict.fromkeys(places, body), **how)
        report.check(PoliciesResult)
    return report


async def count(document: bytes) -> int | None:
    """Count the policies in a document; None if it is invalid."""
    parse = json.loads if kind_of(document) == JSON else tomllib.loads
    try:
        # tomllib is pure Python and may take a while: the thread keeps the event loop free.
        found = await asyncio.to_thread(lambda: parse(document.decode()))
    except (ValueError, RecursionError):
        return None
    listed = found.get("policies", []) if isinstance(found, dict) else None
    return len(listed) if isinstance(listed, list) else None


def changed(report: Report) -> int:
    """Number of settings of topics and channels that change, over all nsqds."""
    return sum(checked(one.answer, PoliciesResult).changed for one in report.done)


def changes(report: Report) -> list[dict[str, Any]]:
    """List the changes at each nsqd; an nsqd reports only its first ones."""
    return [
        {"node": one.address, **msgspec.to_builtins(change), "channel": change.channel or ""}
        for one in report.done
        for change in checked(one.answer, PoliciesResult).changes
    ]


def to_toml(policies: Iterable[Policy]) -> str:
    """Format policies as a TOML document; their values are numbers and texts."""
    lines = (
        "\n".join(["[[policies]]", *(f"{key} = {json.dumps(each)}" for key, each in one.items())])
        for one in policies
    )
    return "\n\n".join(lines)


def is_gos(reason: str) -> bool:
    """Whether a node failed because it does not have the route: it is a Go nsqd."""
    return NO_ROUTE in reason


def refusal(reason: str) -> str:
    """Extract why an nsqd refused a document from a failure; "" for any other failure."""
    if REFUSED not in reason:
        return ""
    message = reason  # used if the reason was cut off and is no valid JSON
    with contextlib.suppress(ValueError, KeyError, TypeError):
        # Twice: the reason quotes nsqd's JSON answer as a JSON string.
        message = str(json.loads(json.loads(reason[reason.index('"') :]))["message"])
    return message.partition(REFUSED)[2].lstrip(": ")


def kind_of(document: bytes) -> str:
    """Content type of a document: TOML, or the same as JSON."""
    return JSON if document.lstrip()[:1] == b"{" else TOML
