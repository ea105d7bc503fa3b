"""`seek`: move a channel to another position in the log at each nsqd, and report where it landed.

A dry run comes first. If messages would be skipped (they wait, are in flight or deferred now, and
would not be delivered afterwards), the channel's name must be typed.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.cluster import actions
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.figures import seek_result
from sparq.tools.admin.changes import failures
from sparq.tools.admin.job import Job, in_words
from sparq.tools.admin.reading import Survey, survey
from sparq.tools.command_line import ToolError

HEADINGS: Final = {
    "nsqd": "nsqd",
    "new_place": "lands_at",
    "index": "index",
    "note": "note",
    "delivered_again": "again",
    "skipped": "skipped",
    "waiting_after": "waiting",
}
"""The table's headings, and the keys of its cells, which are those of the JSON document."""

OLDER_ARE_GONE: Final = "older messages are gone"


async def seek(job: Job) -> int:
    """Move the channel; return the exit status.

    Raises:
        UsageError: a name is not valid.
        ToolError: nothing was done.
    """
    job.check_names()
    place = job.words[2]
    found = await survey(job.fleet, job.topic, job.channel)
    if not found.having and not found.errors:
        raise ToolError(f"no nsqd has the {job.what}: nothing was done")
    tried = await _seek(job, found, place, dry_run=True)
    skipped = sum(row["skipped"] for row in rows_of(tried))
    if job.options.dry_run:
        return await _say(job, tried)
    if skipped:
        await job.confirm(job.channel, f"this skips {skipped:,} messages of {job.what}")
    where = [one.address for one in tried.done]
    if not where:
        return await _say(job, tried)
    report = await _seek(job, found, place, dry_run=False, nodes=where)
    report.outcomes += tried.errors
    return await _say(job, report)


async def _seek(
    job: Job, found: Survey, place: str, *, dry_run: bool, nodes: list[str] | None = None
) -> Report:
    report = await actions.seek(
        job.fleet, job.topic, job.channel, place, dry_run=dry_run, nodes=nodes or ()
    )
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    report.warnings = {**found.errors, **report.warnings}
    return report


def rows_of(report: Report) -> list[dict[str, Any]]:
    """Return a row for each nsqd that answered."""
    return [_row(one) for one in report.done]


def _row(one: StepOutcome) -> dict[str, Any]:
    landed = seek_result(one.answer)
    return {
        "nsqd": one.address,
        "lands_at": landed.time,
        "index": landed.index,
        "note": OLDER_ARE_GONE if landed.older_are_gone else "",
        "again": landed.again,
        "skipped": landed.skipped,
        "waiting": landed.waiting,
        "oldest_time": landed.oldest_time,
    }


async def _say(job: Job, report: Report) -> int:
    """Report where the channel landed and where it was not moved; return the exit status."""
    rows = rows_of(report)
    failed = failures(report)
    is_dry = bool(job.options.dry_run)
    if job.options.json:
        steps = job.next_steps(failed)
        result = "failed" if not rows else "partly" if failed else "done"
        names = {"verb": "seek", "topic": job.topic, "channel": job.channel, "to": job.words[2]}
        record = {"rows": rows, "errors": failed, "next": steps}
        await job.say_json({**names, "dry_run": is_dry, "result": result, **record})
        return int(bool(failed) or not rows)
    done = "dry run: would move" if is_dry else "moved in part:" if failed else "moved:"
    await job.say(f"{done if rows else 'not moved:'} {job.what} to {job.words[2]}")
    if rows:
        cells = [{heading: row[key] for heading, key in HEADINGS.items()} for row in rows]
        await job.show(tuple(HEADINGS), cells, 4)
    await job.say_errors(failed)
    return int(bool(failed) or not rows)
