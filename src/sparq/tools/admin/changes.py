"""`pause unpause empty delete create tombstone`: make one change at all daemons and report it.

The verb first finds out which nsqds have the topic; a dry run ends there. A daemon that reports
that it has no such topic or channel has nothing to do, which is not a failure. `delete` and
`tombstone` fail if an nsqd has the topic or channel again 1.5 s later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from sparq.cluster import actions
from sparq.cluster.actions import Report, StepOutcome
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.protocol.names import quote
from sparq.tools.admin.job import Job, has_nothing, in_words
from sparq.tools.admin.reading import Survey, known, survey
from sparq.tools.command_line import ToolError

Act = Callable[[Fleet, str, str], Awaitable[Report]]
NOTHING: Final = "nothing to do: it has no such topic or channel"
COMES_BACK: Final = (
    "an nsqd that was down still has what it did not delete, and registers it when it starts"
)


class ChangeVerb(NamedTuple):
    """A verb: the function to call, its past participle, and what it loses ("": nothing)."""

    act: Act
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
    found = await _found(job)
    if job.options.dry_run:
        return await _say_plan(job, found)
    doing = CHANGES[job.verb]
    if doing.loses:
        figures = {"waiting": f"{found.waiting:,}", "what": job.what, "topic": job.topic}
        sentence = doing.loses.format(**figures, node=job.channel)
        is_whole = job.verb == "tombstone" or not job.channel
        await job.confirm(job.topic if is_whole else job.channel, f"this {sentence}")
    try:
        report = await doing.act(job.fleet, job.topic, job.channel)
    except UnknownNode:
        raise ToolError(await _no_such_node(job)) from None
    return await say_report(job, report, doing.past)


async def _found(job: Job) -> Survey:
    """Return the nsqds that have the topic or channel; for `create`, those that it calls."""
    if job.verb == "create":
        return await _nsqds_for_create(job)
    channel = "" if job.verb == "tombstone" else job.channel
    found = await survey(job.fleet, job.topic, channel)
    if job.verb == "tombstone":
        if job.channel not in found.nodes:
            raise ToolError(await _no_such_node(job))
        mine = job.channel
        return Survey(
            {at: figures for at, figures in found.having.items() if at == mine},
            {mine: found.nodes[mine]},
            {at: why for at, why in found.errors.items() if at == mine or at not in found.nodes},
        )
    if not found.having and not found.errors and job.verb != "delete":
        raise ToolError(f"no nsqd has the {job.what}: nothing was done")
    return found


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


async def _no_such_node(job: Job) -> str:
    nodes = await job.fleet.nodes()
    known = ", ".join(node.address for node in nodes.value[:10]) or "none"
    return (
        f"{quote(job.channel)} is not an nsqd with topic {job.topic}: nothing was done;"
        f" known: {known}"
    )


async def _say_plan(job: Job, found: Survey) -> int:
    """Print what the change would do at each daemon."""
    past = CHANGES[job.verb].past
    if job.verb == "create":
        lookupds = [address for address in job.fleet.lookupds if address not in found.errors]
        where = [*lookupds, *found.nodes]
        rows = [_planned(address, f"create {job.what}") for address in where]
    else:
        rows = [
            _planned(address, f"have it {past}", figures.left)
            for address, figures in found.having.items()
        ]
    if job.options.json:
        plan = {"verb": job.verb, "dry_run": True, "topic": job.topic, "channel": job.channel}
        steps = job.next_steps(found.errors)
        await job.say_json({**plan, "plan": rows, "errors": found.errors, "next": steps})
        return int(bool(found.errors))
    await job.show(("daemon", "would", "left"), rows, 2)
    await job.say_errors(found.errors)
    return int(bool(found.errors))


def _planned(address: str, would: str, left: int | None = None) -> dict[str, Any]:
    return {"daemon": address, "would": would, "left": left}


async def say_report(job: Job, report: Report, past: str) -> int:
    """Print what was done where; return the exit status.

    If no nsqd had anything to do, the whole command counts as failed.
    """
    failed = failures(report)
    is_done = bool(report.done)
    result = "failed" if not is_done else "partly" if failed or report.failed else "done"
    hint = COMES_BACK if job.verb in ("delete", "tombstone") else ""
    if job.options.json:
        await job.say_json(_document(job, report, result, failed, hint))
        return int(result != "done")
    words = {"done": past, "partly": f"{past} in part", "failed": f"not {past}"}[result]
    await job.say(f"{words}: {_about(job)}")
    reported = {one.address for one in report.outcomes}
    results = [(one.step, _result(one), one.address) for one in report.outcomes]
    results += [
        ("", f"NOT ASKED: {in_words(why)}", address)
        for address, why in report.warnings.items()
        if address not in reported
    ]
    rows = [
        {"daemon": ", ".join(addresses), "step": step, "result": result}
        for (step, result, _), addresses in _alike(results).items()
    ]
    await job.show(("daemon", "step", "result"), rows, 3)
    if report.failed:
        await job.say(in_words(report.failed))
    await job.say_next_steps(failed, hint=hint)
    return int(result != "done")


def failures(report: Report) -> dict[str, str]:
    """Return why each daemon did not do its part; one that has nothing to change did its part."""
    return known(report.warnings) | known({one.address: one.error for one in report.errors})


def _about(job: Job) -> str:
    if job.verb == "tombstone":
        return f"topic {job.topic} at {job.channel}"
    return job.what


def _alike(results: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], list[str]]:
    """Group the addresses of the daemons at which a step failed for the same reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for step, result, address in results:
        own = address if result in ("done", NOTHING) else ""
        found.setdefault((step, result, own), []).append(address)
    return found


def _result(one: StepOutcome) -> str:
    if not one.error:
        return "done"
    if has_nothing(one.error):
        return NOTHING
    return f"{'NO' if one.step == actions.STAYS_AWAY else 'NOT DONE'}: {in_words(one.error)}"


def _document(
    job: Job, report: Report, result: str, failed: dict[str, str], hint: str
) -> dict[str, Any]:
    """Return the report as a JSON document."""
    return {
        "verb": job.verb,
        "topic": job.topic,
        "channel": "" if job.verb == "tombstone" else job.channel,
        "dry_run": bool(job.options.dry_run),
        "result": result,
        "steps": [
            {
                "daemon": one.address,
                "step": one.step,
                "done": not one.error,
                "error": in_words(one.error) or None,
                "answer": one.answer,
            }
            for one in report.outcomes
        ],
        "errors": failed,
        "next": job.next_steps(failed, hint=hint),
    }
