"""Policies of the cluster's nsqds: reads them, finds the settings of a topic, changes them.

1. Each nsqd stores its own policies (docs/policies.md). nsqds with equal policies are grouped.
2. Before a document is set, every nsqd checks it in a dry run. If one nsqd refuses it, nothing is
   changed.
3. Answers are not trusted: entries that are no policy or setting are left out, and texts are cut to
   one line.
4. Go's nsqd has no policies and answers that there is no such route; it is listed in `unable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sparq.cluster import policies as cluster
from sparq.cluster.actions import Report
from sparq.cluster.figures import policies_result
from sparq.cluster.fleet import Fleet
from sparq.nsqadmin.messages.asking import Answers
from sparq.protocol.names import one_line

BYTES_MAX: Final = 256 << 10
"""Maximum size of a document: nsqd accepts no more."""

SOURCES: Final = {"configured": "file", "policies": "run time"}
"""Displayed name of each source of policies in nsqd's answer, in the order nsqd reads them."""

REFUSED: Final = "INVALID_POLICIES"
GO_NODE: Final = "this is NSQ's Go nsqd, which does not support this action"
NO_ROUTE: Final = r"\"NOT_FOUND\""
"""Part of NSQ's answer to an unknown path, as `Outcome.error` quotes it."""

_KEY: Final = re.compile(r"[a-z][a-z_]{0,63}")

Policy = dict[str, int | str]
"""One policy of a document: patterns and settings by key."""


class DocumentRefused(ValueError):
    """A document is refused; the text names the nsqd and the reason."""


async def query(fleet: Fleet, topic: str = "", channel: str = "") -> Answers:
    """Fetch the policies of all nsqds, or the settings that apply to a topic or channel.

    Returns:
        By the nsqd's address, its policies by source and its flags, which apply without policies.
        With a topic, the settings by key: `{"value", "source"}`, and the policy's `number` if a
        policy decided it.
    """
    read = await cluster.read(fleet, topic, channel)
    found = Answers()
    for address, why in read.errors.items():
        if is_gos(why):
            found.unable = sorted((*found.unable, address))
        else:
            found.errors[address] = why
    for address, answer in read.value.items():
        if topic:
            found.found[address] = _held(answer.get("settings"))
        else:
            # nsqd lists the patterns first. Their keys fit `_KEY`, so `_settings` keeps them.
            held: dict[str, Any] = {
                source: [
                    _settings(one)
                    for one in _dicts(answer.get(source))
                    if isinstance(one.get("topic"), str)
                ]
                for source in SOURCES
            }
            found.found[address] = held | {"flags": _settings(answer.get("flags"))}
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
        return await cluster.drop(fleet, dry_run=True)
    if len(document) > BYTES_MAX:
        raise DocumentRefused(
            f"the document is {len(document):,} bytes long; the maximum is {BYTES_MAX:,}"
        )
    report = await cluster.put(fleet, document, _kind(document), dry_run=True)
    for one in report.errors:
        if why := refusal(one.error):
            raise DocumentRefused(f"{one.address}: {why}")
    return report


async def put(fleet: Fleet, document: bytes) -> Report:
    """Replace the policies that were set at run time on every nsqd.

    Raises:
        DocumentRefused: an nsqd refuses the document; nothing is changed.
    """
    tried = await try_out(fleet, document)
    # No nsqd can do it: report their reasons instead of asking all of them again.
    if not tried.done:
        return tried
    return await cluster.put(fleet, document, _kind(document), dry_run=False)


async def drop(fleet: Fleet) -> Report:
    """Drop the policies that were set at run time on every nsqd."""
    return await cluster.drop(fleet, dry_run=False)


async def count(document: bytes) -> int | None:
    """Count the policies in a document; None if it is invalid."""
    parse = json.loads if _kind(document) == cluster.JSON else tomllib.loads
    try:
        # tomllib is pure Python and may take a while: the thread keeps the event loop free.
        found = await asyncio.to_thread(lambda: parse(document.decode()))
    except (ValueError, RecursionError):
        return None
    listed = found.get("policies", []) if isinstance(found, dict) else None
    return len(listed) if isinstance(listed, list) else None


def changed(report: Report) -> int:
    """Number of settings of topics and channels that change, over all nsqds."""
    return sum(policies_result(one.answer).changed for one in report.done)


def changes(report: Report) -> list[dict[str, int | str]]:
    """List the changes at each nsqd; an nsqd reports only its first ones."""
    return [
        {"node": one.address, **{key: _value(change.get(key)) for key in _CHANGE}}
        for one in report.done
        if isinstance(one.answer, dict)
        for change in _dicts(one.answer.get("changes"))
    ]


_CHANGE: Final = ("topic", "channel", "setting", "before", "after")


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


def _kind(document: bytes) -> str:
    """Content type of a document: TOML, or the same as JSON."""
    return cluster.JSON if document.lstrip()[:1] == b"{" else cluster.TOML


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _value(value: Any) -> int | str:
    return value if isinstance(value, int) else one_line(value) if isinstance(value, str) else ""


def _settings(given: Any) -> Policy:
    found = given.items() if isinstance(given, dict) else ()
    return {key: _value(value) for key, value in found if _KEY.fullmatch(key)}


def _held(given: Any) -> dict[str, dict[str, Any]]:
    items = given.items() if isinstance(given, dict) else ()
    found = {}
    for key, each in items:
        if not _KEY.fullmatch(key) or not isinstance(each, dict):
            continue
        setting: dict[str, Any] = {"value": _value(each.get("value")), "source": "flags"}
        number = each.get("number")
        if each.get("source") in SOURCES and isinstance(number, int):
            setting |= {"source": each["source"], "number": number}
        found[key] = setting
    return found
