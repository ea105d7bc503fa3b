"""`requeue finish cancel copy redrive`: act on single messages that are named by their ids.

Ids come from the command line, or with `-` from standard input, as `find --ids` prints them. Every
nsqd that has the topic gets all ids and acts on the messages it has: an id belongs to one nsqd
only. An id that no nsqd acted on is reported with the nsqds' reasons.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster import actions
from sparq.cluster.actions import IDS_MAX
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.names import is_valid_name, quote
from sparq.tools.admin.job import Job
from sparq.tools.admin.reading import nodes_of, note
from sparq.tools.command_line import UsageError
from sparq.tools.pipes import Input

PAST: Final = {
    "requeue": "requeued",
    "finish": "finished",
    "cancel": "cancelled",
    "copy": "copied",
    "redrive": "redriven",
}
INPUT_BYTES_MAX: Final = 64 << 20
LOOKUPS_AT_ONCE: Final = 16
SHOWN_MAX: Final = 20
OTHER_NODE: Final = "it belongs to another node"
"""nsqd's reason for refusing an id that another nsqd has assigned."""

_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(slots=True)
class SelectionOutcome:
    """The outcome: `done` maps ids to nsqds, `refused` maps ids to the reason they were refused."""

    done: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


async def act(job: Job) -> int:
    """Act on the messages; return the exit status.

    Raises:
        UsageError: a word is not an id, or `copy` has no topic to copy to.
        ToolError: nothing was done.
    """
    is_copy = job.verb == "copy"
    if is_copy and not is_valid_name(job.options.to):
        raise UsageError(f"--to takes the topic to copy to, not {quote(job.options.to)}")
    ids = await _ids(job.words[1 if is_copy else 2 :])
    job.request = job.request._replace(words=job.words[: 1 if is_copy else 2])
    job.check_names()
    nodes = await nodes_of(job)
    if job.options.dry_run:
        found = await _locate(job, nodes, ids)
    else:
        if job.verb in ("finish", "cancel"):
            sentence = f"this drops {len(ids):,} messages of {job.what}, unread"
            await job.confirm(job.channel, sentence)
        found = await _send_ids(job, nodes, ids)
    return await _say(job, ids, found)


async def _ids(words: tuple[str, ...]) -> list[str]:
    """Return the ids without duplicates. Raises UsageError: one is not an id, or there are none."""
    texts = list(words)
    if words == ("-",):
        data = b""
        keys = Input()
        while read := await keys.read():
            data += read
            if len(data) > INPUT_BYTES_MAX:
                raise UsageError(
                    f"more than {INPUT_BYTES_MAX:,} bytes of ids on standard input: send fewer"
                )
        texts = data.decode("utf-8", "replace").split()
    for text in texts:
        if not _ID.fullmatch(text):
            raise UsageError(f"{quote(text[:80])} is not a message id: use 16 hexadecimal digits")
    if not texts:
        raise UsageError("no ids on standard input")
    return list(dict.fromkeys(texts))


async def _send_ids(job: Job, nodes: list[Node], ids: list[str]) -> SelectionOutcome:
    """Send the ids to the nsqds, a thousand at a time."""
    found = SelectionOutcome()
    for at in range(0, len(ids), IDS_MAX):
        some = ids[at : at + IDS_MAX]
        report = await actions.messages(
            *(job.fleet, job.verb, job.topic, job.channel),
            # An nsqd that failed once is not asked again: each further part would wait for its
            # timeout.
            {node.address: some for node in nodes if node.address not in job.errors},
            to=getattr(job.options, "to", ""),
            to_all=getattr(job.options, "to_all", False),
        )
        for one in report.outcomes:
            if one.error:
                note(job, one.address, one.error)
            else:
                _take(found, one.address, one.answer)
    return found


def _take(found: SelectionOutcome, address: str, answer: Any) -> None:
    page = answer if isinstance(answer, dict) else {}
    for one in page.get("done") or ():
        if isinstance(one, str):
            found.done[one] = address
    for entry in page.get("refused") or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        # The nsqd that the id belongs to knows why; all others give the same reason.
        if found.refused.get(entry["id"], OTHER_NODE) == OTHER_NODE:
            found.refused[entry["id"]] = str(entry.get("why", ""))


async def _locate(job: Job, nodes: list[Node], ids: list[str]) -> SelectionOutcome:
    """Find out which nsqd has which message: this is the whole of a dry run."""
    found = SelectionOutcome()
    limit = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def locate(node: Node, one: str) -> None:
        query = {"topic": job.topic, "channel": job.channel, "id": one, "bodies": "false"}
        async with limit:
            try:
                await job.fleet.get(node, "/message", **query)
            except UpstreamError as error:
                note(job, node.address, error.reason)
            else:
                found.done[one] = node.address

    await asyncio.gather(*(locate(node, one) for node in nodes for one in ids))
    return found


async def _say(job: Job, ids: list[str], found: SelectionOutcome) -> int:
    """Report what was done where; return the exit status."""
    missing = [one for one in ids if one not in found.done]
    is_failure = bool(missing or job.errors)
    if job.options.json:
        await job.say_json(_document(job, found, missing))
        return int(is_failure)
    past = ("would be " if job.options.dry_run else "") + PAST[job.verb]
    await job.say(f"{past}: {len(found.done):,} of {len(ids):,} messages of {job.what}")
    counts = {at: sum(where == at for where in found.done.values()) for at in found.done.values()}
    await job.say(*(f"  {address}  {count:,}" for address, count in sorted(counts.items())))
    for one in missing[:SHOWN_MAX]:
        await job.say(f"  {one}  NOT DONE: {_why(found, one)}")
    if len(missing) > SHOWN_MAX:
        await job.say(f"  ... and {len(missing) - SHOWN_MAX:,} more")
    await job.say_errors(job.errors, words=(*job.words, *(missing[:SHOWN_MAX] or ["-"])))
    return int(is_failure)


def _why(found: SelectionOutcome, one: str) -> str:
    return found.refused.get(one) or "no nsqd that answered has it"


def _document(job: Job, found: SelectionOutcome, missing: list[str]) -> dict[str, Any]:
    return {
        **{"verb": job.verb, "topic": job.topic, "channel": job.channel},
        "dry_run": bool(job.options.dry_run),
        "result": "failed" if not found.done else "partly" if missing or job.errors else "done",
        "done": found.done,
        "refused": {one: _why(found, one) for one in missing},
        "errors": job.errors,
        "next": job.next_steps(job.errors, words=(*job.words, *(missing or ["-"]))),
    }
