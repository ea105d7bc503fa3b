"""The policies of the cluster's nsqds: what each has, what holds for a topic, and their change.

1. Each nsqd keeps its own (docs/policies.md). Those that have the same stand together.
2. Before anything is set every nsqd says whether it takes the document: where one refuses it,
   nothing is done.
3. An answer is not trusted: what is no policy or no setting is left out, texts are cut to one line.
4. Go's nsqd has none, and says that there is no such route: it is among `unable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.client.reasons import one_line
from sparq.cluster import policies as cluster
from sparq.cluster.actions import Report
from sparq.cluster.fleet import Fleet

BYTES_MAX: Final = 256 << 10
"""Of a document: nsqd takes no more."""

SOURCES: Final = {"configured": "file", "policies": "run time"}
"""By nsqd's word for where a policy comes from the one for people, in the order of the policies."""

REFUSED: Final = "INVALID_POLICIES"
GO_NODE: Final = "it is no sparq nsqd: it cannot do this"
NO_ROUTE: Final = r"\"NOT_FOUND\""
"""In NSQ's answer to a path that it does not have, as `Outcome.error` quotes it."""

_KEY: Final = re.compile(r"[a-z][a-z_]{0,63}")

Policy = dict[str, int | str]
"""As a document has it."""


class NotTaken(ValueError):
    """A document is refused; the text says by whom and why."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one nsqd has: its policies by their source, and the settings without them."""

    by_source: Mapping[str, list[Policy]]
    flags: Policy


@dataclass(frozen=True, slots=True)
class Found:
    """What the nsqds said.

    Attributes:
        nodes: by address what an nsqd has.
        errors: why others did not say.
        unable: those that have no policies: Go's.
    """

    nodes: dict[str, Held]
    errors: dict[str, str]
    unable: list[str]

    def groups(self, *sources: str) -> list[list[str]]:
        """The nsqds, those with the same policies of these sources together, most nsqds first."""
        found: dict[str, list[str]] = {}
        for address, held in sorted(self.nodes.items()):
            key = json.dumps([held.by_source[source] for source in sources])
            found.setdefault(key, []).append(address)
        return sorted(found.values(), key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Holding:
    """What holds for a topic or a channel: by address its settings, each with its source.

    A setting is `{"value", "source"}`, with the policy's `number` where one has decided it.
    """

    nodes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unable: list[str] = field(default_factory=list)


async def look(fleet: Fleet) -> Found:
    """The policies of all nsqds."""
    read = await cluster.read(fleet)
    nodes = {
        address: Held(
            {source: _policies(answer.get(source)) for source in SOURCES},
            _settings(answer.get("flags")),
        )
        for address, answer in read.value.items()
    }
    return Found(nodes, *_apart(read.errors))


async def holding(fleet: Fleet, topic: str, channel: str = "") -> Holding:
    """What holds for a topic, or for a channel of it, at all nsqds."""
    read = await cluster.read(fleet, topic, channel)
    nodes = {address: _held(answer.get("settings")) for address, answer in read.value.items()}
    return Holding(nodes, *_apart(read.errors))


async def try_out(fleet: Fleet, document: bytes | None) -> Report:
    """What each nsqd would change if a document were set, or all were dropped; nothing is done.

    Raises:
        NotTaken: an nsqd refuses the document.
    """
    if document is None:
        return await cluster.drop(fleet, dry_run=True)
    if len(document) > BYTES_MAX:
        raise NotTaken(f"it has {len(document):,} bytes: {BYTES_MAX:,} may be")
    report = await cluster.put(fleet, document, _kind(document), dry_run=True)
    for one in report.errors:
        if why := refusal(one.error):
            raise NotTaken(f"{one.address}: {why}")
    return report


async def put(fleet: Fleet, document: bytes) -> Report:
    """Have every nsqd take a document instead of what was set at run time before.

    Raises:
        NotTaken: an nsqd refuses it; nothing is done.
    """
    tried = await try_out(fleet, document)
    if not tried.done:
        return tried
    return await cluster.put(fleet, document, _kind(document), dry_run=False)


async def drop(fleet: Fleet) -> Report:
    """Have every nsqd drop what was set at run time."""
    return await cluster.drop(fleet, dry_run=False)


async def count(document: bytes) -> int | None:
    """How many policies a document has; None: it is none."""
    parse = json.loads if _kind(document) == cluster.JSON else tomllib.loads
    try:
        # tomllib is plain Python, and may take a while: the loop goes on beside it.
        found = await asyncio.to_thread(lambda: parse(document.decode()))
    except (ValueError, RecursionError):
        return None
    listed = found.get("policies", []) if isinstance(found, dict) else None
    return len(listed) if isinstance(listed, list) else None


def changed(report: Report) -> int:
    """How many settings of topics and channels change, over all nsqds."""
    found = [one.answer.get("changed") for one in report.done if isinstance(one.answer, dict)]
    return sum(number for number in found if isinstance(number, int))


def changes(report: Report) -> list[dict[str, int | str]]:
    """What changes at which nsqd, as far as the nsqds have told it: each tells the first ones."""
    return [
        {"node": one.address, **{key: _value(change.get(key)) for key in _CHANGE}}
        for one in report.done
        if isinstance(one.answer, dict)
        for change in _dicts(one.answer.get("changes"))
    ]


_CHANGE: Final = ("topic", "channel", "setting", "before", "after")


def to_toml(policies: Iterable[Policy]) -> str:
    """Policies as a document; their values are numbers and texts."""
    lines = (
        "\n".join(["[[policies]]", *(f"{key} = {json.dumps(each)}" for key, each in one.items())])
        for one in policies
    )
    return "\n\n".join(lines)


def is_gos(reason: str) -> bool:
    """Whether a node did not do something because it has no such route."""
    return NO_ROUTE in reason


def refusal(reason: str) -> str:
    """What an nsqd has against a document, of the reason of a failure; "": something else."""
    if REFUSED not in reason:
        return ""
    said = reason  # also where it was too long, and its end is missing
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = str(json.loads(json.loads(reason[reason.index('"') :]))["message"])
    return said.partition(REFUSED)[2].lstrip(": ")


def _apart(errors: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Failures, and Go's nodes."""
    failed = {address: why for address, why in errors.items() if not is_gos(why)}
    return failed, sorted(errors.keys() - failed.keys())


def _kind(document: bytes) -> str:
    """A document is TOML, or the same as JSON."""
    return cluster.JSON if document.lstrip()[:1] == b"{" else cluster.TOML


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _text(value: Any) -> str:
    return one_line(str(value)) if isinstance(value, str | int) else ""


def _value(value: Any) -> int | str:
    return value if isinstance(value, int) else _text(value)


def _settings(given: Any) -> Policy:
    found = given.items() if isinstance(given, dict) else ()
    return {key: _value(value) for key, value in found if _KEY.fullmatch(key)}


def _policies(listed: Any) -> list[Policy]:
    # Patterns come first, as nsqd has them: a key is one, too.
    return [_settings(one) for one in _dicts(listed) if isinstance(one.get("topic"), str)]


def _held(given: Any) -> dict[str, dict[str, Any]]:
    told = given.items() if isinstance(given, dict) else ()
    found = {}
    for key, each in told:
        if not _KEY.fullmatch(key) or not isinstance(each, dict):
            continue
        setting: dict[str, Any] = {"value": _value(each.get("value")), "source": "flags"}
        number = each.get("number")
        if each.get("source") in SOURCES and isinstance(number, int):
            setting |= {"source": each["source"], "number": number}
        found[key] = setting
    return found
