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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sparq.cluster import policies as cluster
from sparq.cluster.actions import Report
from sparq.cluster.figures import policies_result
from sparq.tools.admin.changes import failures
from sparq.tools.admin.job import Job, check_name, in_words, lines_of, result_of
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.view import table

HEADINGS: Final = ("nsqds", "source", "topic", "channel", "settings", "number")
CHANGES: Final = ("nsqd", "topic", "channel", "setting", "before", "after")
SOURCES: Final = {"configured": "file", "policies": "run time"}
LINES_MAX: Final = 50
STDIN: Final = "-"


async def policies(job: Job) -> int:
    """Run the action; return the exit status.

    Raises:
        UsageError: the words or the file are not valid.
        ToolError: nothing was done.
    """
    match job.words:
        case ():
            return await _list(job)
        case ("show", topic):
            return await _show(job, topic, "")
        case ("show", topic, channel):
            return await _show(job, topic, channel)
        case ("export",):
            return await _export(job)
        case ("apply", path):
            return await _apply(job, path)
        case ("drop",):
            return await _drop(job)
    raise UsageError(
        "use: policies, policies show TOPIC [CHANNEL], policies export, policies apply FILE|-,"
        " or policies drop"
    )


async def _read(job: Job, topic: str = "", channel: str = "") -> dict[str, Any]:
    """Return each nsqd's policies; nsqds that do not answer are added to the job's errors."""
    found = await cluster.read(job.fleet, topic, channel)
    job.errors |= {at: in_words(why) for at, why in found.errors.items()}
    if found.failed:
        job.warn_of_errors()
        raise ToolError("no nsqd returned its policies")
    return found.value


def _policies(answer: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """Return the policies of one source from an nsqd's response; invalid entries are skipped."""
    listed = answer.get(source)
    if not isinstance(listed, list):
        return []
    return [one for one in listed if isinstance(one, dict) and isinstance(one.get("topic"), str)]


def _differ(found: Mapping[str, Any]) -> bool:
    """Whether the policies set at run time are not the same at all nsqds."""
    return len({json.dumps(_policies(answer, "policies")) for answer in found.values()}) > 1


async def _list(job: Job) -> int:
    found = await _read(job)
    groups: dict[str, list[str]] = {}  # the nsqds that have the same policies
    for address, answer in found.items():
        key = json.dumps([_policies(answer, source) for source in SOURCES])
        groups.setdefault(key, []).append(address)
    rows = []
    for together in groups.values():
        for source, name in SOURCES.items():
            for number, policy in enumerate(_policies(found[together[0]], source), 1):
                # As in TOML, without quotes.
                settings = [
                    f"{key}={value if isinstance(value, str) else json.dumps(value)}"
                    for key, value in policy.items()
                    if key not in ("topic", "channel")
                ]
                nsqds, channel = ", ".join(together), policy.get("channel", "")
                cells = (nsqds, name, policy["topic"], channel, " ".join(settings), number)
                rows.append(dict(zip(HEADINGS, cells, strict=True)))
    await job.show(HEADINGS, rows, 5)
    if not job.options.json and _differ(found):
        await job.say(
            "", "policies set at run time differ between nsqds: apply one file to all of them"
        )
    return job.warn_of_errors()


async def _show(job: Job, topic: str, channel: str) -> int:
    check_name("topic", topic)
    if channel:
        check_name("channel", channel)
    rows = []
    for address, answer in (await _read(job, topic, channel)).items():
        settings = answer.get("settings")
        for key, value in (settings if isinstance(settings, dict) else {}).items():
            fields = value if isinstance(value, dict) else {}
            rows.append(
                {
                    "nsqd": address,
                    "setting": key,
                    "value": fields.get("value"),
                    "source": SOURCES.get(str(fields.get("source")), "flag"),
                    "number": fields.get("number"),
                }
            )
    await job.show(("nsqd", "setting", "value", "source", "number"), rows, 4)
    return job.warn_of_errors()


async def _export(job: Job) -> int:
    found = await _read(job)
    if _differ(found):
        raise ToolError(
            "policies set at run time differ between nsqds: compare them with sparq admin policies,"
            " then choose one nsqd with --nsqd-http-address"
        )
    listed = _policies(next(iter(found.values())), "policies")
    if job.options.json:
        await job.say_json({"policies": listed})
    else:
        # As TOML; the values are numbers and strings.
        texts = [
            "\n".join(["[[policies]]", *(f"{key} = {json.dumps(one[key])}" for key in one)])
            for one in listed
        ]
        await job.say("\n\n".join(texts) or "# no policies were set at run time")
    return job.warn_of_errors()


async def _apply(job: Job, path: str) -> int:
    def read() -> bytes:
        try:
            return sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    document = await asyncio.to_thread(read)
    kind = cluster.JSON if document.lstrip()[:1] == b"{" else cluster.TOML
    tried = await cluster.put(job.fleet, document, kind, dry_run=True)
    # Stop before any change if an nsqd refuses the document; others would probably do so, too.
    refused = {one.address: one.error for one in tried.errors if "INVALID_POLICIES" in one.error}
    if refused:
        raise ToolError(f"nothing was done: {'; '.join(lines_of(refused))}")
    if job.options.dry_run:
        return await _say(job, tried, "would be set")
    return await _say(job, await cluster.put(job.fleet, document, kind, dry_run=False), "set")


async def _drop(job: Job) -> int:
    tried = await cluster.drop(job.fleet, dry_run=True)
    if job.options.dry_run:
        return await _say(job, tried, "would be dropped")
    await job.confirm(
        "policies",
        f"this drops the policies set at run time: {_changed(tried):,} settings change, and data"
        " that only they keep is deleted",
    )
    return await _say(job, await cluster.drop(job.fleet, dry_run=False), "dropped")


def _changed(report: Report) -> int:
    return sum(policies_result(one.answer).changed for one in report.done)


async def _say(job: Job, report: Report, past: str) -> int:
    """Report the outcome; return the exit status."""
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    failed = failures(report)
    rows = []
    for one in report.done:
        listed = one.answer.get("changes") if isinstance(one.answer, dict) else None
        rows += [
            {"nsqd": one.address} | {key: each.get(key) for key in CHANGES[1:]}
            for each in listed or ()
            if isinstance(each, dict)
        ]
    changed = _changed(report)
    result = result_of(bool(report.done), bool(failed))
    document = {"verb": "policies", "action": job.words[0], "dry_run": bool(job.options.dry_run)}
    document |= {"result": result, "changed": changed, "changes": rows}
    words = f"not {past.rsplit(maxsplit=1)[-1]}"
    if report.done:
        words = f"{past} at {len(report.done)} nsqds"
    lines = [f"{words}: {changed:,} settings of topics and channels change"]
    shown = rows[:LINES_MAX]
    lines += table(CHANGES, shown, 6) if rows else []
    if changed > len(shown):
        lines.append(f"and {changed - len(shown):,} more")
    await job.report(document, lines, failed)
    return int(result != "done")
