"""`pause unpause empty delete create tombstone seek`: make a change at all daemons and report it.

The verb first finds out which nsqds have the topic; a dry run ends there. A daemon that reports
that it has no such topic or channel has nothing to do, which is not a failure. `delete` and
`tombstone` fail if an nsqd has the topic or channel again 1.5 s later.

`seek` moves a channel to another position in the log at each nsqd, and reports where it landed. A
dry run comes first. If messages would be skipped (they wait, are in flight or deferred now, and
would not be delivered afterwards), the channel's name must be typed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from sparq.cluster import actions
from sparq.cluster.actions import Report
from sparq.cluster.figures import seek_result
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.tools.admin.job import Job, Survey, has_nothing, in_words, known, result_of, survey
from sparq.tools.commands import ToolError

NOTHING: Final = "nothing to do: it has no such topic or channel"
COMES_BACK: Final = (
    "an nsqd that was down still has what it did not delete, and registers it when it starts"
)
SEEK: Final = {
    "nsqd": "nsqd",
    "new_place": "lands_at",
    "index": "index",
    "note": "note",
    "delivered_again": "again",
    "skipped": "skipped",
    "waiting_after": "waiting",
}
"""The headings of `seek`, and the keys of its cells, which are those of the JSON document."""


class ChangeVerb(NamedTuple):
    """A verb: the function to call, its past participle, and what it loses ("": nothing)."""

    act: Callable[[Fleet, str, str], Awaitable[Report]]
    past: str
    loses: str = ""


CHANGES: Final = {
    "pause": ChangeVerb(actions.pause, "paused"),
    "unpause": ChangeVerb(actions.unpause, "unpaused"),
    "create": ChangeVerb(actions.create, "created"),
    "empty": ChangeVerb(actions.empty, "emptied", "drops {waiting} messages of {what}"),
    "delete": ChangeVerb(actions.delete, "deleted", "deletes {what} with {waiting} messages"),
    "tombstone": ChangeVerb(
        actions.tombstone, "tombstoned", "deletes topic {topic} with {waiting} messages at {node}"
    ),
}


async def change(job: Job) -> int:
    """Make the change; return the exit status.

    Raises:
        UsageError: a name is not valid.
        ToolError: nothing was done.
    """
    job.check_names()
    found = await _nsqds_for_create(job) if job.verb == "create" else await _found(job)
    verb = CHANGES[job.verb]
    if job.options.dry_run:
        if job.verb == "create":
            lookupds = [address for address in job.fleet.lookupds if address not in found.errors]
            left: dict[str, int | None] = dict.fromkeys([*lookupds, *found.nodes])
            would = f"create {job.what}"
        else:
            left = {address: figures.left for address, figures in found.having.items()}
            would = f"have it {verb.past}"
        rows = [{"daemon": at, "would": would, "left": count} for at, count in left.items()]
        if job.options.json:
            plan = {"verb": job.verb, "dry_run": True, "topic": job.topic, "channel": job.channel}
            steps = job.next_steps(found.errors)
            await job.say_json({**plan, "plan": rows, "errors": found.errors, "next": steps})
        else:
            await job.show(("daemon", "would", "left"), rows, 2)
            await job.say_errors(found.errors)
        return int(bool(found.errors))
    if verb.loses:
        waiting = sum(figures.left for figures in found.having.values())
        figures = {"waiting": f"{waiting:,}", "what": job.what, "topic": job.topic}
        is_whole = job.verb == "tombstone" or not job.channel
        await job.confirm(
            job.topic if is_whole else job.channel,
            f"this {verb.loses.format(**figures, node=job.channel)}",
        )
    try:
        report = await verb.act(job.fleet, job.topic, job.channel)
    except UnknownNode:
        raise await _no_such_node(job) from None
    return await _say_report(job, report, verb.past)


async def _found(job: Job) -> Survey:
    """Return the nsqds that have the topic or channel."""
    if job.verb != "tombstone":
        found = await survey(job.fleet, job.topic, job.channel)
        if not found.having and not found.errors and job.verb != "delete":
            raise ToolError(f"no nsqd has the {job.what}: nothing was done")
        return found
    found, mine = await survey(job.fleet, job.topic), job.channel
    if mine not in found.nodes:
        raise await _no_such_node(job)
    return Survey(
        {at: figures for at, figures in found.having.items() if at == mine},
        {mine: found.nodes[mine]},
        {at: why for at, why in found.errors.items() if at == mine or at not in found.nodes},
    )


async def _nsqds_for_create(job: Job) -> Survey:
    """Return the nsqds that `create` calls: all nsqds if there are no nsqlookupds.

    With nsqlookupds, those are the topic's nsqds for a new channel, and none for a new topic.
    """
    fleet = job.fleet
    if not fleet.lookupds:
        everybody = await fleet.nodes()
        return Survey({}, {node.address: node for node in everybody.value}, dict(everybody.errors))
    producers = await fleet.producers(job.topic)
    nodes = producers.value if job.channel else []
    stats = await fleet.stats(job.topic, nodes=nodes)
    answering = {node.address: node for node in nodes if node.address in stats.value}
    return Survey({}, answering, known(producers.errors) | stats.errors)


async def _no_such_node(job: Job) -> ToolError:
    return await job.no_such_node(job.channel, f"with topic {job.topic}: nothing was done")


def failures(report: Report) -> dict[str, str]:
    """Return why each daemon did not do its part; one that has nothing to change did its part."""
    return known(report.warnings) | known({one.address: one.error for one in report.errors})


async def _say_report(job: Job, report: Report, past: str) -> int:
    """Print what was done where; return the exit status.

    If no nsqd had anything to do, the whole command counts as failed.
    """
    failed = failures(report)
    result = result_of(bool(report.done), bool(failed or report.failed))
    hint = COMES_BACK if job.verb in ("delete", "tombstone") else ""
    if job.options.json:
        steps = [
            {
                "daemon": one.address,
                "step": one.step,
                "done": not one.error,
                "error": in_words(one.error) or None,
                "answer": one.answer,
            }
            for one in report.outcomes
        ]
        document = {
            "verb": job.verb,
            "topic": job.topic,
            "channel": "" if job.verb == "tombstone" else job.channel,
            "dry_run": False,
            "result": result,
            "steps": steps,
            "errors": failed,
            "next": job.next_steps(failed, hint=hint),
        }
        await job.say_json(document)
        return int(result != "done")
    words = {"done": past, "partly": f"{past} in part", "failed": f"not {past}"}[result]
    at = job.verb == "tombstone"
    await job.say(f"{words}: {f'topic {job.topic} at {job.channel}' if at else job.what}")
    # Daemons at which a step failed for the same reason have one row together.
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in report.outcomes:
        text = "done"
        if has_nothing(one.error):
            text = NOTHING
        elif one.error:
            no = "NO" if one.step == actions.STAYS_AWAY else "NOT DONE"
            text = f"{no}: {in_words(one.error)}"
        own = one.address if text in ("done", NOTHING) else ""
        alike.setdefault((one.step, text, own), []).append(one.address)
    reported = {one.address for one in report.outcomes}
    for address, why in report.warnings.items():
        if address not in reported:
            alike.setdefault(("", f"NOT ASKED: {in_words(why)}", ""), []).append(address)
    rows = [
        {"daemon": ", ".join(addresses), "step": step, "result": text}
        for (step, text, _), addresses in alike.items()
    ]
    await job.show(("daemon", "step", "result"), rows, 3)
    if report.failed:
        await job.say(in_words(report.failed))
    await job.say_next_steps(failed, hint=hint)
    return int(result != "done")


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

    async def run(*, dry_run: bool, nodes: list[str]) -> Report:
        report = await actions.seek(
            job.fleet, job.topic, job.channel, place, dry_run=dry_run, nodes=nodes
        )
        if report.failed:
            raise ToolError(f"nothing was done: {in_words(report.failed)}")
        report.warnings = {**found.errors, **report.warnings}
        return report

    report = await run(dry_run=True, nodes=[])
    rows = _seek_rows(report)
    is_dry = bool(job.options.dry_run)
    if rows and not is_dry:
        if skipped := sum(row["skipped"] for row in rows):
            await job.confirm(job.channel, f"this skips {skipped:,} messages of {job.what}")
        refused = report.errors
        report = await run(dry_run=False, nodes=[one.address for one in report.done])
        report.outcomes += refused
        rows = _seek_rows(report)
    failed = failures(report)
    if job.options.json:
        names = {"verb": "seek", "topic": job.topic, "channel": job.channel, "to": place}
        result = {"dry_run": is_dry, "result": result_of(bool(rows), bool(failed))}
        record = {"rows": rows, "errors": failed, "next": job.next_steps(failed)}
        await job.say_json({**names, **result, **record})
        return int(bool(failed) or not rows)
    done = "dry run: would move" if is_dry else "moved in part:" if failed else "moved:"
    await job.say(f"{done if rows else 'not moved:'} {job.what} to {place}")
    if rows:
        cells = [{heading: row[key] for heading, key in SEEK.items()} for row in rows]
        await job.show(tuple(SEEK), cells, 4)
    await job.say_errors(failed)
    return int(bool(failed) or not rows)


def _seek_rows(report: Report) -> list[dict[str, Any]]:
    """Return a row for each nsqd that answered."""
    return [
        {
            "nsqd": one.address,
            "lands_at": landed.time,
            "index": landed.index,
            "note": "older messages are gone" if landed.older_are_gone else "",
            "again": landed.again,
            "skipped": landed.skipped,
            "waiting": landed.waiting,
            "oldest_time": landed.oldest_time,
        }
        for one, landed in ((one, seek_result(one.answer)) for one in report.done)
    ]
