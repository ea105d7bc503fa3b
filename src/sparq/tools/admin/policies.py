"""`policies`: settings of topics and channels by pattern, at all nsqds of the cluster.

Without words it lists the policies of each nsqd in order; nsqds with the same policies share their
rows. `show` prints which settings apply to a topic or a channel and why, `export` writes the
policies set at run time as TOML, `apply` sets a file's policies at all nsqds, `drop` drops them.
Before a change, every nsqd checks it in a dry run: if one refuses the document, nothing is done.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sparq.cluster import policies as cluster
from sparq.cluster.actions import Report
from sparq.cluster.figures import policies_result
from sparq.protocol.names import is_valid_name, quote
from sparq.tools.admin.changes import failures
from sparq.tools.admin.job import Job, in_words, lines_of
from sparq.tools.command_line import ToolError, UsageError

HEADINGS: Final = ("nsqds", "source", "topic", "channel", "settings", "number")
HOLDING: Final = ("nsqd", "setting", "value", "source", "number")
CHANGES: Final = ("nsqd", "topic", "channel", "setting", "before", "after")
SOURCES: Final = {"configured": "file", "policies": "run time"}
REFUSED: Final = "INVALID_POLICIES"
PATTERNS: Final = ("topic", "channel")
LINES_MAX: Final = 50
STDIN: Final = "-"


async def policies(job: Job) -> int:
    """Run the action; return the exit status.

    Raises:
        UsageError: the words or the file are not valid.
        ToolError: nothing was done.
    """
    action, *words = job.words or ("",)
    acts: dict[str, tuple[Callable[[Job], Awaitable[int]], range]] = {
        "": (_list, range(1)),
        "show": (_show, range(1, 3)),
        "export": (_export, range(1)),
        "apply": (_apply, range(1, 2)),
        "drop": (_drop, range(1)),
    }
    act, counts = acts.get(action, (None, range(0)))
    if act is None or len(words) not in counts:
        raise UsageError(
            "use: policies, policies show TOPIC [CHANNEL], policies export, policies apply FILE|-,"
            " or policies drop"
        )
    return await act(job)


async def _read(job: Job, topic: str = "", channel: str = "") -> dict[str, Any]:
    """Return each nsqd's policies; nsqds that do not answer are added to the job's errors."""
    found = await cluster.read(job.fleet, topic, channel)
    job.errors |= {at: in_words(why) for at, why in found.errors.items()}
    if found.failed:
        job.warn_of_errors()
        raise ToolError("no nsqd returned its policies")
    return found.value


async def _list(job: Job) -> int:
    found = await _read(job)
    rows = [row for together in _alike(found) for row in _rows(together, found[together[0]])]
    await job.show(HEADINGS, rows, 5)
    if not job.options.json and len({_key(answer, "policies") for answer in found.values()}) > 1:
        await job.say(
            "", "policies set at run time differ between nsqds: apply one file to all of them"
        )
    return job.warn_of_errors()


def _alike(found: Mapping[str, Any]) -> list[list[str]]:
    """Group the nsqds that have the same policies."""
    groups: dict[str, list[str]] = {}
    for address, answer in found.items():
        groups.setdefault(_key(answer, *SOURCES), []).append(address)
    return list(groups.values())


def _key(answer: Mapping[str, Any], *sources: str) -> str:
    return json.dumps([_policies(answer, source) for source in sources])


def _policies(answer: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """Return the policies of one source from an nsqd's response; invalid entries are skipped."""
    listed = answer.get(source)
    if not isinstance(listed, list):
        return []
    return [one for one in listed if isinstance(one, dict) and isinstance(one.get("topic"), str)]


def _rows(addresses: list[str], answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for source, name in SOURCES.items():
        for number, policy in enumerate(_policies(answer, source), 1):
            settings = {key: value for key, value in policy.items() if key not in PATTERNS}
            yield {
                "nsqds": ", ".join(addresses),
                "source": name,
                "topic": policy["topic"],
                "channel": policy.get("channel", ""),
                "settings": " ".join(f"{key}={_shown(value)}" for key, value in settings.items()),
                "number": number,
            }


def _shown(value: Any) -> str:
    """Format a setting for a table: as in TOML, without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


async def _show(job: Job) -> int:
    topic, channel = job.words[1], job.words[2] if len(job.words) > 2 else ""
    for kind, name in (("topic", topic), ("channel", channel)):
        if name and not is_valid_name(name):
            raise UsageError(f"{quote(name)} is not a valid {kind} name")
    rows = []
    for address, answer in (await _read(job, topic, channel)).items():
        settings = answer.get("settings")
        for key, value in (settings if isinstance(settings, dict) else {}).items():
            fields = value if isinstance(value, dict) else {}
            source = fields.get("source")
            rows.append(
                {
                    "nsqd": address,
                    "setting": key,
                    "value": fields.get("value"),
                    "source": SOURCES.get(str(source), "flag"),
                    "number": fields.get("number"),
                }
            )
    await job.show(HOLDING, rows, 4)
    return job.warn_of_errors()


async def _export(job: Job) -> int:
    found = await _read(job)
    if len({_key(answer, "policies") for answer in found.values()}) > 1:
        raise ToolError(
            "policies set at run time differ between nsqds: compare them with sparq admin policies,"
            " then choose one nsqd with --nsqd-http-address"
        )
    listed = _policies(next(iter(found.values())), "policies")
    if job.options.json:
        await job.say_json({"policies": listed})
    else:
        await job.say("\n\n".join(map(_toml, listed)) or "# no policies were set at run time")
    return job.warn_of_errors()


def _toml(policy: Mapping[str, Any]) -> str:
    """Format a policy as TOML; its values are numbers and strings."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    return "\n".join(["[[policies]]", *lines])


async def _apply(job: Job) -> int:
    document = await asyncio.to_thread(_document, job.words[1])
    kind = cluster.JSON if document.lstrip()[:1] == b"{" else cluster.TOML
    tried = await cluster.put(job.fleet, document, kind, dry_run=True)
    _refuse(tried)
    if job.options.dry_run:
        return await _say(job, tried, "would be set")
    return await _say(job, await cluster.put(job.fleet, document, kind, dry_run=False), "set")


def _document(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _refuse(tried: Report) -> None:
    """Stop before any change if an nsqd refuses the document; others would probably do so, too."""
    refused = {one.address: one.error for one in tried.errors if REFUSED in one.error}
    if refused:
        raise ToolError(f"nothing was done: {'; '.join(lines_of(refused))}")


async def _drop(job: Job) -> int:
    tried = await cluster.drop(job.fleet, dry_run=True)
    if job.options.dry_run:
        return await _say(job, tried, "would be dropped")
    changed = sum(_changed(one.answer) for one in tried.done)
    await job.confirm(
        "policies",
        f"this drops the policies set at run time: {changed:,} settings change, and data that only"
        " they keep is deleted",
    )
    return await _say(job, await cluster.drop(job.fleet, dry_run=False), "dropped")


def _changed(answer: Any) -> int:
    return policies_result(answer).changed


def _changes(address: str, answer: Any) -> list[dict[str, Any]]:
    listed = answer.get("changes") if isinstance(answer, dict) else None
    rows = [one for one in listed or () if isinstance(one, dict)]
    return [{"nsqd": address} | {key: one.get(key) for key in CHANGES[1:]} for one in rows]


async def _say(job: Job, report: Report, past: str) -> int:
    """Report the outcome; return the exit status."""
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    failed = failures(report)
    rows = [row for one in report.done for row in _changes(one.address, one.answer)]
    changed = sum(_changed(one.answer) for one in report.done)
    is_done = bool(report.done)
    status = int(bool(failed) or not is_done)
    if job.options.json:
        result = "failed" if not is_done else "partly" if failed else "done"
        record = {"verb": "policies", "action": job.words[0], "dry_run": bool(job.options.dry_run)}
        record |= {"result": result, "changed": changed, "changes": rows, "errors": failed}
        await job.say_json({**record, "next": job.next_steps(failed)})
        return status
    last = past.rsplit(maxsplit=1)[-1]
    words = f"{past} at {len(report.done)} nsqds" if is_done else f"not {last}"
    await job.say(f"{words}: {changed:,} settings of topics and channels change")
    if rows:
        await job.show(CHANGES, rows[:LINES_MAX], 6)
    if changed > min(len(rows), LINES_MAX):
        await job.say(f"and {changed - min(len(rows), LINES_MAX):,} more")
    await job.say_errors(failed)
    return status
