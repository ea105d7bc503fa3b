"""The policies of a cluster's nsqds (docs/policies.md): read, compared, and set at all of them.

1. Each nsqd stores its own policies. Go's nsqd has none, and answers that there is no such route.
2. Before a document is set, every nsqd checks it in a dry run. If one nsqd refuses it, nothing is
   changed.
3. Answers are not trusted: one of another form makes its node faulty.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct, to_builtins

from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.figures import Line, PoliciesResult, checked
from sparq.cluster.fleet import Fleet, Node
from sparq.cluster.upstream import UpstreamError

PATH: Final = "/policies"
TOML: Final = "application/toml"
JSON: Final = "application/json"

BYTES_MAX: Final = 256 << 10
"""Maximum size of a document: nsqd accepts no more."""

SOURCES: Final = {"configured": "file", "policies": "run time"}
"""Displayed name of each source of policies in nsqd's answer, in the order nsqd reads them."""

PATTERNS: Final = ("topic", "channel")
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


class SettingsAnswer(Struct):
    """An nsqd's answer about a topic or channel."""

    settings: dict[Line, Setting] = {}


class PoliciesAnswer(Struct):
    """An nsqd's policies by source, and its flags, which apply without policies."""

    configured: list[Policy] = []
    policies: list[Policy] = []
    flags: Policy = {}


class DocumentRefused(ValueError):
    """A document is refused; the text names the nsqd and the reason."""


@dataclass(slots=True)
class PoliciesFound:
    """The policies of all nsqds.

    Attributes:
        nodes: by address, the fields of `PoliciesAnswer`; or, for a topic, `Setting`s by key.
        errors: why other nodes did not answer.
        unable: addresses of Go nsqds.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unable: list[str] = field(default_factory=list)


async def query(fleet: Fleet, topic: str = "", channel: str = "") -> PoliciesFound:
    """Fetch the policies of all nsqds, or the settings that apply to a topic or channel."""
    nodes = await fleet.nodes()

    async def ask(node: Node) -> dict[str, Any]:
        if topic:
            query = {"topic": topic, "channel": channel}
            answer = await fleet.read(node, PATH, SettingsAnswer, **query)
            return {key: to_builtins(setting) for key, setting in answer.settings.items()}
        found: dict[str, Any] = to_builtins(await fleet.read(node, PATH, PoliciesAnswer))
        return found

    answers, errors = await fleet.each(nodes.value, ask)
    unable = sorted(address for address, why in errors.items() if is_gos(why))
    errors = {address: why for address, why in errors.items() if address not in unable}
    return PoliciesFound(answers, {**nodes.errors, **errors}, unable)


def groups(nodes: Mapping[str, Any], *sources: str) -> list[list[str]]:
    """Group the nsqds whose policies of these sources are equal, the largest group first."""
    found: dict[str, list[str]] = {}
    for address, held in sorted(nodes.items()):
        key = json.dumps([held[source] for source in sources])
        found.setdefault(key, []).append(address)
    return sorted(found.values(), key=len, reverse=True)


def rows(held: Mapping[str, list[Policy]]) -> list[dict[str, Any]]:
    """List an nsqd's policies in the order in which it reads them, each with its source."""
    return [
        {
            "source": name,
            "number": number,
            "topic": policy["topic"],
            "channel": policy.get("channel", ""),
            "settings": {key: value for key, value in policy.items() if key not in PATTERNS},
        }
        for source, name in SOURCES.items()
        for number, policy in enumerate(held[source], 1)
    ]


async def send(fleet: Fleet, document: bytes | None, *, dry_run: bool = False) -> Report:
    """Make every nsqd replace the policies set at run time with a document; None: drop them.

    With `dry_run`, the report has what each nsqd would change, and nothing is changed.

    Raises:
        DocumentRefused: an nsqd refuses the document in a dry run.
    """
    if document is not None and len(document) > BYTES_MAX:
        size = f"{len(document):,} bytes long; the maximum is {BYTES_MAX:,}"
        raise DocumentRefused(f"the document is {size}")
    how = {"method": "DELETE", "content_type": JSON}
    if document is not None:
        how = {"method": "PUT", "content_type": kind_of(document)}
    how |= {"dry_run": "true"} if dry_run else {}

    async def ask(node: Node) -> Any:
        try:
            return await fleet.post(node, PATH, document or b"", **how)
        except UpstreamError as error:
            if dry_run and error.code.startswith(REFUSED):
                why = error.code.removeprefix(REFUSED).lstrip(": ")
                raise DocumentRefused(f"{node.address}: {why}") from None
            raise

    report, nodes = Report(), await fleet.nodes()
    if report.add_lookup(nodes):
        answers, errors = await fleet.each(nodes.value, ask)
        report.outcomes = [
            StepOutcome(at, PATH[1:], errors.get(at, ""), answers.get(at))
            for at in [node.address for node in nodes.value]
        ]
        report.check(PoliciesResult)
    return report


async def replace(fleet: Fleet, document: bytes) -> Report:
    """Replace the policies that were set at run time on every nsqd.

    Raises:
        DocumentRefused: an nsqd refuses the document; nothing is changed.
    """
    tried = await send(fleet, document, dry_run=True)
    # If no nsqd can do it, report their reasons instead of asking all of them again.
    return await send(fleet, document) if tried.done else tried


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
        {"node": one.address, **to_builtins(change), "channel": change.channel or ""}
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


def kind_of(document: bytes) -> str:
    """Content type of a document: TOML, or the same as JSON."""
    return JSON if document.lstrip()[:1] == b"{" else TOML
