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
from pathlib import Path
from typing import Any, Final

from sparq.cluster import policies as cluster
from sparq.cluster.actions import Report
from sparq.cluster.policies import SOURCES, DocumentRefused
from sparq.tools.admin.job import NO_ROUTE, Job, failures, in_words, known
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.tables import table

HEADINGS: Final = ("nsqds", "source", "topic", "channel", "settings", "number")
SETTINGS: Final = ("nsqd", "setting", "value", "source", "number")
CHANGES: Final = ("nsqd", "topic", "channel", "setting", "before", "after")
LINES_MAX: Final = 50


async def policies(job: Job) -> int:
    """Run the action; return the exit status.

    Raises:
        UsageError: the words or the file are not valid.
        ToolError: nothing was done.
    """
    # These words name no topic, except those of `show`.
    job.topic = job.channel = ""
    match job.words:
        case ():
            return await _list(job)
        case ("show", topic, *rest) if len(rest) < 2:
            job.topic, job.channel = topic, "".join(rest)
            return await _show(job)
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


async def _read(job: Job) -> dict[str, dict[str, Any]]:
    """Return each nsqd's policies; nsqds that do not answer are added to the job's errors."""
    found = await cluster.query(job.fleet, job.topic, job.channel)
    job.errors |= known(found.errors) | dict.fromkeys(found.unable, NO_ROUTE)
    if not found.nodes:
        job.warn_of_errors()
        raise ToolError("no nsqd returned its policies")
    return found.nodes


def _differ(nodes: dict[str, Any]) -> bool:
    """Whether the policies set at run time are not the same at all nsqds."""
    return len(cluster.groups(nodes, "policies")) > 1


async def _list(job: Job) -> int:
    nodes = await _read(job)
    rows = []
    for together in cluster.groups(nodes, *SOURCES):
        for row in cluster.rows(nodes[together[0]]):
            # As in TOML, without quotes.
            row["settings"] = " ".join(
                f"{key}={value if isinstance(value, str) else json.dumps(value)}"
                for key, value in row["settings"].items()
            )
            rows.append({"nsqds": ", ".join(together), **row})
    lines = table(HEADINGS, rows)
    if _differ(nodes):
        differ = "policies set at run time differ between nsqds: apply one file to all of them"
        lines += ["", differ]
    return await job.show({"rows": rows}, *lines)


async def _show(job: Job) -> int:
    job.check_names()
    rows = []
    for address, settings in (await _read(job)).items():
        for key, setting in settings.items():
            source = SOURCES.get(setting["source"], "flag")
            row = {"nsqd": address, "setting": key, "number": None, **setting, "source": source}
            rows.append(row)
    return await job.show({"rows": rows}, *table(SETTINGS, rows))


async def _export(job: Job) -> int:
    nodes = await _read(job)
    if _differ(nodes):
        raise ToolError(
            "policies set at run time differ between nsqds: compare them with sparq admin policies,"
            " then choose one nsqd with --nsqd-http-address"
        )
    listed = next(iter(nodes.values()))["policies"]
    toml = cluster.to_toml(listed) or "# no policies were set at run time"
    return await job.show({"policies": listed}, toml)


async def _apply(job: Job, path: str) -> int:
    def read() -> bytes:
        try:
            return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    document = await asyncio.to_thread(read)
    try:
        if job.options.dry_run:
            report = await cluster.send(job.fleet, document, dry_run=True)
        else:
            report = await cluster.replace(job.fleet, document)
    except DocumentRefused as error:
        raise ToolError(f"nothing was done: {error}") from None
    return await _report(job, report, "set")


async def _drop(job: Job) -> int:
    report = await cluster.send(job.fleet, None, dry_run=True)
    if not job.options.dry_run:
        await job.confirm(
            "policies",
            f"this drops the policies set at run time: {cluster.changed(report):,} settings change,"
            " and data that only they keep is deleted",
        )
        report = await cluster.send(job.fleet, None)
    return await _report(job, report, "dropped")


async def _report(job: Job, report: Report, past: str) -> int:
    """Report the outcome; return the exit status."""
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    rows = [{"nsqd": each.pop("node"), **each} for each in cluster.changes(report)]
    changed = cluster.changed(report)
    would = "would be " if job.options.dry_run else ""
    words = f"{would}{past} at {len(report.done)} nsqds" if report.done else f"not {past}"
    lines = [f"{words}: {changed:,} settings of topics and channels change"]
    lines += table(CHANGES, rows[:LINES_MAX]) if rows else []
    if (more := changed - LINES_MAX) > 0:
        lines.append(f"and {more:,} more")
    document = {"action": job.words[0], "changed": changed, "changes": rows}
    return await job.report(document, lines, failures(report), is_done=bool(report.done))
