"""`pause unpause empty delete create tombstone seek drain`: make a change at all daemons.

The verb first finds out which nsqds have the topic; a dry run ends there. A daemon that reports
that it has no such topic or channel has nothing to do, which is not a failure. `delete` and
`tombstone` fail if an nsqd has the topic or channel again 1.5 s later.

`seek` moves a channel to another position in the log at each nsqd, and reports where it landed. A
dry run comes first. If messages would be skipped (they wait, are in flight or deferred now, and
would not be delivered afterwards), the channel's name must be typed.

`drain` takes an nsqd out of service: publishes are refused, its messages are worked off. Without
`--exit` the verb is done when nothing is left; with it, when the process has ended after its last
report that nothing was left. Channels and topics that nothing works off are listed on stderr, each
time the list changes. A drain that times out, or whose verb is stopped, goes on at the nsqd:
`--undo` ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from sparq.cluster import actions, draining
from sparq.cluster.actions import Report
from sparq.cluster.draining import DrainProgress
from sparq.cluster.figures import SeekResult, checked
from sparq.cluster.fleet import Fleet, Node, UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.options.units import SECOND
from sparq.tools.admin.job import (
    Job,
    Survey,
    failures,
    has_nothing,
    in_words,
    known,
    lines_of,
    survey,
)
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import progress_shown
from sparq.tools.tables import table

NOTHING: Final = "nothing to do: it has no such topic or channel"
COMES_BACK: Final = (
    "an nsqd that was down still has what it did not delete, and registers it when it starts"
)
PLACES: Final = ("nsqd", "lands_at", "index", "note", "again", "skipped", "waiting")
POLL_SECONDS: Final = 0.5
"""Shorter than the time for which an nsqd reports itself empty before it exits."""

HELD_UP_SHOWN: Final = 5
DRAINED: Final = {
    "undone": "{node} accepts publishes again",
    "ended": "{node} had nothing left, and its process has exited; messages refused: {refused:,}",
    "empty": "{node} is draining and has nothing left; messages refused: {refused:,}",
    "waiting": "{node} is still draining, {messages:,} messages left; run this again to wait",
    "unknown": "{node} does not answer: see its log; last seen: {messages:,} messages left",
}


class ChangeVerb(NamedTuple):
    """A verb: the function to call, its past participle, and what it loses ("": nothing)."""

    act: Callable[[Fleet, str, str], Awaitable[Report]]
    past: str
    loses: str = ""


CHANGES: Final = {
    "pause": ChangeVerb(actions.pause, "paused"),
    "unpause": ChangeVerb(actions.unpause, "unpaused"),
    "create": ChangeVerb(actions.create, "created"),
    "empty": ChangeVerb(actions.empty, "emptied", "drops {waiting:,} messages of {what}"),
    "delete": ChangeVerb(actions.delete, "deleted", "deletes {what} with {waiting:,} messages"),
    "tombstone": ChangeVerb(
        actions.tombstone, "tombstoned", "deletes topic {topic} with {waiting:,} messages at {node}"
    ),
}


async def change(job: Job) -> int:
    """Make the change; return the exit status.

    Raises:
        UsageError: a name is not valid.
        ToolError: nothing was done.
    """
    name, node = job.request.verb, ""
    verb = CHANGES[name]
    if name == "tombstone":
        node, job.channel = job.channel, ""
    job.check_names()
    try:
        found = await _found(job, name, node)
        if job.options.dry_run:
            return await _report_plan(job, found, verb)
        if verb.loses:
            waiting = sum(figures.left for figures in found.having.values())
            words = {"what": job.what, "topic": job.topic, "node": node, "waiting": waiting}
            await job.confirm(job.channel or job.topic, f"this {verb.loses.format(**words)}")
        report = await verb.act(job.fleet, job.topic, node or job.channel)
    except UnknownNode:
        which = f"with topic {job.topic}: nothing was done"
        raise await job.no_such_node(node, which) from None
    failed = failures(report)
    steps = []
    for one in report.outcomes:
        result = "done"
        if has_nothing(one.error):
            result = NOTHING
        elif one.error:
            result = "NO" if one.step == actions.STAYS_AWAY else "NOT DONE"
        step = {"daemon": one.address, "step": one.step, "result": result, "done": not one.error}
        steps.append({**step, "error": in_words(one.error) or None, "answer": one.answer})
    # If no nsqd had anything to do, the whole command counts as failed.
    past = f"{verb.past} in part" if failed or report.failed else verb.past
    what = f"topic {job.topic} at {node}" if node else job.what
    lines = [f"{past if report.done else f'not {verb.past}'}: {what}"]
    lines += table(("daemon", "step", "result"), steps)
    lines += [in_words(report.failed)] if report.failed else []
    hint = COMES_BACK if name in ("delete", "tombstone") else ""
    return await job.report(
        {"steps": steps},
        *(lines, failed),
        is_done=bool(report.done),
        is_whole=not report.failed,
        hint=hint,
    )


async def _found(job: Job, verb: str, node: str) -> Survey:
    """Return the nsqds that a verb changes. Raises UnknownNode: `tombstone` has none."""
    fleet = job.fleet
    if verb != "create":
        found = await survey(fleet, job.topic, job.channel, node)
        if verb not in ("delete", "tombstone"):
            require(job, found)
        return found
    # With nsqlookupds, a new topic is created only there.
    everybody = await (fleet.producers(job.topic) if fleet.lookupds else fleet.nodes())
    asked = everybody.value if job.channel or not fleet.lookupds else []
    stats = await fleet.stats(job.topic, nodes=asked)
    answering = {each.address: each for each in asked if each.address in stats.value}
    return Survey({}, answering, known(everybody.errors) | stats.errors)


def require(job: Job, found: Survey) -> None:
    """Raise ToolError if all nsqds have answered and none has the topic or channel."""
    if not found.having and not found.errors:
        raise ToolError(f"no nsqd has the {job.what}: nothing was done")


async def _report_plan(job: Job, found: Survey, verb: ChangeVerb) -> int:
    """Report what would be done where; return the exit status."""
    left: dict[str, int | None] = {at: figures.left for at, figures in found.having.items()}
    would = f"have it {verb.past}"
    if verb is CHANGES["create"]:
        lookupds = [address for address in job.fleet.lookupds if address not in found.errors]
        left, would = dict.fromkeys([*lookupds, *found.nodes]), f"create {job.what}"
    rows = [{"daemon": at, "would": would, "left": count} for at, count in left.items()]
    return await job.report({"plan": rows}, table(("daemon", "would", "left"), rows), found.errors)


async def seek(job: Job) -> int:
    """Move the channel; return the exit status.

    Raises:
        UsageError: a name is not valid.
        ToolError: nothing was done.
    """
    job.check_names()
    place, is_dry = job.words[2], bool(job.options.dry_run)
    found = await survey(job.fleet, job.topic, job.channel)
    require(job, found)

    async def run(*, dry_run: bool, nodes: list[str]) -> tuple[Report, list[dict[str, Any]]]:
        """Return the report, and a row for each nsqd that answered."""
        report = await actions.seek(
            job.fleet, job.topic, job.channel, place, dry_run=dry_run, nodes=nodes
        )
        if report.failed:
            raise ToolError(f"nothing was done: {in_words(report.failed)}")
        report.warnings = {**found.errors, **report.warnings}
        rows = [
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
            for one, landed in ((one, checked(one.answer, SeekResult)) for one in report.done)
        ]
        return report, rows

    report, rows = await run(dry_run=True, nodes=[])
    if rows and not is_dry:
        if skipped := sum(row["skipped"] for row in rows):
            await job.confirm(job.channel, f"this skips {skipped:,} messages of {job.what}")
        refused = report.errors
        report, rows = await run(dry_run=False, nodes=[one.address for one in report.done])
        report.outcomes += refused
    failed = failures(report)
    done = "dry run: would move" if is_dry else "moved in part:" if failed else "moved:"
    lines = [f"{done if rows else 'not moved:'} {job.what} to {place}"]
    lines += table(PLACES, rows) if rows else []
    return await job.report({"to": place, "rows": rows}, lines, failed, is_done=bool(rows))


async def drain(job: Job) -> int:
    """Drain the node; return the exit status, which is 1 also after the timeout.

    Raises:
        UsageError: flags do not go together.
        ToolError: nothing was done.
    """
    options, address = job.options, job.topic
    if options.undo and (options.exit or options.timeout_ns):
        raise UsageError("--undo ends a drain: remove --exit and --timeout")
    node, answer = await _request_drain(job, address)
    last, result = DrainProgress(draining=True), "undone"
    try:
        if options.undo:
            last = checked(answer, DrainProgress)
        else:
            async with (
                progress_shown(
                    lambda: (
                        f"{last.messages:,} messages left in {last.channels:,} channels:"
                        f" {last.in_flight:,} in flight, {last.deferred:,} deferred"
                    )
                ),
                asyncio.timeout(options.timeout_ns / SECOND or None),
            ):
                async for last in _drained(job, node):  # noqa: B007 - the last one counts
                    pass
            if last.draining:
                result = "ended" if options.exit else "empty"
    except ValueError as error:
        raise ToolError(f"{address}: {error}") from None
    except TimeoutError:
        result = "waiting"
    except UpstreamError as error:
        job.errors[node.address] = in_words(error.reason)
        result = "unknown"
    figures = {"refused": last.refused, "messages": last.messages}
    document = {"verb": "drain", "node": address, "result": result, **to_builtins(last)}
    lines = [DRAINED[result].format(node=address, **figures)]
    if result in ("waiting", "unknown") and last.left:
        lines += table(("topic", "channel", "messages", "held_up"), document["left"])
    await job.show(document, *lines)
    return int(result in ("waiting", "unknown") or (result == "undone" and not options.undo))


async def _request_drain(job: Job, address: str) -> tuple[Node, Any]:
    """Begin the drain, or end it with `--undo`; return the node and its answer.

    Raises:
        ToolError: nothing was done.
    """
    try:
        node = await job.fleet.node(address)
        if job.options.undo:
            report = await draining.end(job.fleet, address)
        else:
            report = await draining.begin(job.fleet, address, leave=job.options.exit)
    except UnknownNode:
        raise await job.no_such_node(address, "of this cluster: nothing was done") from None
    if failed := failures(report):
        raise ToolError("; ".join(lines_of(failed)))
    return node, report.done[0].answer


async def _drained(job: Job, node: Node) -> AsyncIterator[DrainProgress]:
    """Yield the node's progress until nothing is left, or with `--exit` its process has ended.

    It also ends if the drain is undone.

    Raises:
        UpstreamError: the nsqd did not report its progress.
    """
    told: list[str] = []
    last = DrainProgress(draining=True)
    while last.draining and not (last.empty and not last.exit):
        try:
            last = await draining.progress(job.fleet, node)
        except UpstreamError as error:
            # The process ends its connections before it answers the last request.
            if error.status or not (last.exit and last.empty):
                raise
            return
        yield last
        held_up = last.held_up
        names = [f"{one.name}: {one.held_up}" for one in held_up]
        if names != told and last.draining:
            told = names
            for one, name in zip(held_up[:HELD_UP_SHOWN], names, strict=False):
                job.warn(f"held up: {name}, {one.messages:,} messages")
            if len(held_up) > HELD_UP_SHOWN:
                job.warn(f"and {len(held_up) - HELD_UP_SHOWN:,} more")
        await asyncio.sleep(POLL_SECONDS)
