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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from sparq.cluster import actions, draining
from sparq.cluster.actions import Report
from sparq.cluster.draining import DrainProgress
from sparq.cluster.figures import seek_result
from sparq.cluster.fleet import Fleet, Node, UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.options.units import SECOND
from sparq.tools.admin.job import (
    Job,
    Survey,
    has_nothing,
    in_words,
    known,
    lines_of,
    result_of,
    survey,
)
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import progress_shown
from sparq.tools.view import table

NOTHING: Final = "nothing to do: it has no such topic or channel"
COMES_BACK: Final = (
    "an nsqd that was down still has what it did not delete, and registers it when it starts"
)
SEEK: Final = ("nsqd", "new_place", "index", "note", "delivered_again", "skipped", "waiting_after")
"""The headings of `seek`."""

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
LEFT: Final = ("topic", "channel", "left", "held up by")


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
    job.check_names()
    verb = CHANGES[job.verb]
    is_tombstone = job.verb == "tombstone"
    try:
        found = await (_nsqds_for_create(job) if job.verb == "create" else _found(job))
        if job.options.dry_run:
            return await _say_plan(job, found, verb)
        if verb.loses:
            waiting = sum(figures.left for figures in found.having.values())
            names = {"what": job.what, "topic": job.topic, "node": job.channel}
            name = job.topic if is_tombstone else job.channel or job.topic
            await job.confirm(name, f"this {verb.loses.format(waiting=waiting, **names)}")
        report = await verb.act(job.fleet, job.topic, job.channel)
    except UnknownNode:
        which = f"with topic {job.topic}: nothing was done"
        raise await job.no_such_node(job.channel, which) from None
    what = f"topic {job.topic} at {job.channel}" if is_tombstone else job.what
    return await _say_report(job, report, verb.past, what)


async def _found(job: Job) -> Survey:
    """Return the nsqds that have the topic or channel. Raises UnknownNode: `tombstone` has none."""
    if job.verb != "tombstone":
        found = await survey(job.fleet, job.topic, job.channel)
        if job.verb != "delete":
            require(job, found)
        return found
    found, mine = await survey(job.fleet, job.topic), job.channel
    if mine not in found.nodes:
        raise UnknownNode(mine)
    return Survey(
        {at: figures for at, figures in found.having.items() if at == mine},
        {mine: found.nodes[mine]},
        {at: why for at, why in found.errors.items() if at == mine or at not in found.nodes},
    )


def require(job: Job, found: Survey) -> None:
    """Raise ToolError if all nsqds have answered and none has the topic or channel."""
    if not found.having and not found.errors:
        raise ToolError(f"no nsqd has the {job.what}: nothing was done")


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


async def _say_plan(job: Job, found: Survey, verb: ChangeVerb) -> int:
    """Report what would be done where; return the exit status."""
    left: dict[str, int | None] = {at: figures.left for at, figures in found.having.items()}
    would = f"have it {verb.past}"
    if job.verb == "create":
        lookupds = [address for address in job.fleet.lookupds if address not in found.errors]
        left, would = dict.fromkeys([*lookupds, *found.nodes]), f"create {job.what}"
    rows = [{"daemon": at, "would": would, "left": count} for at, count in left.items()]
    document = {"verb": job.verb, "dry_run": True, "topic": job.topic, "channel": job.channel}
    lines = table(("daemon", "would", "left"), rows, 2)
    await job.report({**document, "plan": rows}, lines, found.errors)
    return int(bool(found.errors))


def failures(report: Report) -> dict[str, str]:
    """Return why each daemon did not do its part; one that has nothing to change did its part."""
    return known(report.warnings) | known({one.address: one.error for one in report.errors})


async def _say_report(job: Job, report: Report, past: str, what: str) -> int:
    """Print what was done where; return the exit status.

    If no nsqd had anything to do, the whole command counts as failed.
    """
    failed = failures(report)
    result = result_of(bool(report.done), bool(failed or report.failed))
    steps = []
    # Daemons at which a step failed for the same reason have one row together.
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in report.outcomes:
        error = in_words(one.error)
        step = {"daemon": one.address, "step": one.step, "done": not error, "error": error or None}
        steps.append({**step, "answer": one.answer})
        text, own = "done", one.address
        if has_nothing(one.error):
            text = NOTHING
        elif error:
            no = "NO" if one.step == actions.STAYS_AWAY else "NOT DONE"
            text, own = f"{no}: {error}", ""
        alike.setdefault((one.step, text, own), []).append(one.address)
    reported = {one.address for one in report.outcomes}
    for address, why in report.warnings.items():
        if address not in reported:
            alike.setdefault(("", f"NOT ASKED: {in_words(why)}", ""), []).append(address)
    rows = [
        {"daemon": ", ".join(addresses), "step": step, "result": text}
        for (step, text, _), addresses in alike.items()
    ]
    words = {"done": past, "partly": f"{past} in part", "failed": f"not {past}"}[result]
    lines = [f"{words}: {what}", *table(("daemon", "step", "result"), rows, 3)]
    lines += [in_words(report.failed)] if report.failed else []
    channel = "" if job.verb == "tombstone" else job.channel
    document = {"verb": job.verb, "topic": job.topic, "channel": channel, "dry_run": False}
    document |= {"result": result, "steps": steps}
    hint = COMES_BACK if job.verb in ("delete", "tombstone") else ""
    await job.report(document, lines, failed, hint=hint)
    return int(result != "done")


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
            for one, landed in ((one, seek_result(one.answer)) for one in report.done)
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
    if rows:
        lines += table(SEEK, (dict(zip(SEEK, row.values(), strict=False)) for row in rows), 4)
    document: dict[str, Any] = {
        "verb": "seek",
        "topic": job.topic,
        "channel": job.channel,
        "to": place,
    }
    document |= {"dry_run": is_dry, "result": result_of(bool(rows), bool(failed)), "rows": rows}
    await job.report(document, lines, failed)
    return int(bool(failed) or not rows)


# Draining


async def drain(job: Job) -> int:
    """Drain the node; return the exit status, which is 1 also after the timeout.

    Raises:
        UsageError: flags do not go together.
        ToolError: nothing was done.
    """
    options = job.options
    if options.undo and (options.exit or options.timeout_ns):
        raise UsageError("--undo ends a drain: remove --exit and --timeout")
    address = job.words[0]
    try:
        node = await job.fleet.node(address)
        doing = draining.end if options.undo else partial(draining.begin, leave=options.exit)
        report = await doing(job.fleet, address)
    except UnknownNode:
        raise await job.no_such_node(address, "of this cluster: nothing was done") from None
    if failed := failures(report):
        raise ToolError("; ".join(lines_of(failed)))
    if options.undo:
        try:
            ended = draining.read(report.done[0].answer)
        except ValueError as error:
            raise ToolError(f"{address}: {error}") from None
        return await _say_drain(job, "undone", ended, 0)
    watch = DrainWatch(job, node)
    result, status = "ended" if options.exit else "empty", 0
    try:
        async with (
            progress_shown(watch.shown),
            asyncio.timeout(options.timeout_ns / SECOND or None),
        ):
            if not await watch.wait():
                result, status = "undone", 1
    except TimeoutError:
        result, status = "waiting", 1
    except UpstreamError as error:
        job.errors[node.address] = in_words(error.reason)
        result, status = "unknown", 1
    return await _say_drain(job, result, watch.last, status)


class DrainWatch:
    """The last known state of a draining node."""

    def __init__(self, job: Job, node: Node) -> None:
        self.last = DrainProgress(draining=True)
        self._job = job
        self._node = node

    def shown(self) -> str:
        """Return the progress line."""
        last = self.last
        return (
            f"{last.messages:,} messages left in {last.channels:,} channels:"
            f" {last.in_flight:,} in flight, {last.deferred:,} deferred"
        )

    async def wait(self) -> bool:
        """Wait until nothing is left, or with `--exit` until the process has ended; False: undone.

        Raises:
            UpstreamError: the nsqd did not report its progress.
        """
        told: list[tuple[str, str]] = []
        while True:
            try:
                self.last = await draining.progress(self._job.fleet, self._node)
            except UpstreamError as error:
                # The process ends its connections before it answers the last request.
                if error.status or not (self.last.exit and self.last.empty):
                    raise
                return True
            if not self.last.draining or (self.last.empty and not self.last.exit):
                return self.last.draining
            held_up = self.last.held_up
            names = [(one.name, one.held_up) for one in held_up]
            if names != told:
                told = names
                for one in held_up[:HELD_UP_SHOWN]:
                    text = f"held up: {one.name}: {one.held_up}, {one.messages:,} messages"
                    self._job.warn(text)
                if len(held_up) > HELD_UP_SHOWN:
                    self._job.warn(f"and {len(held_up) - HELD_UP_SHOWN:,} more")
            await asyncio.sleep(POLL_SECONDS)


async def _say_drain(job: Job, result: str, last: DrainProgress, status: int) -> int:
    """Report the outcome; return the exit status."""
    node = job.words[0]
    if job.options.json:
        record: dict[str, Any] = {"verb": "drain", "node": node, "result": result}
        await job.say_json({**record, **to_builtins(last), "errors": job.errors})
        return status
    for line in lines_of(job.errors):
        job.warn(line)
    figures = {"refused": last.refused, "messages": last.messages}
    lines = [DRAINED[result].format(node=node, **figures)]
    if result in ("waiting", "unknown") and last.left:
        cells = ((one.topic, one.channel, one.messages, one.held_up) for one in last.left)
        lines += table(LEFT, (dict(zip(LEFT, row, strict=True)) for row in cells), 2)
    await job.say(*lines)
    return status
