"""`list`, `audit` and `dismiss`: topics, a topic's channels, a channel at each nsqd, or the nsqds.

Figures are sums over the nsqds that answered; docs/glossary.md defines them. A topic that only
nsqlookupds know has 0 nsqds.

`audit` lists the changes made through nsqadmin, with their users, from nsqadmin's audit log, newest
first. `dismiss` has nsqadmin no longer show an nsqd that is gone, until it answers again. Both call
nsqadmin's API; `--token` is then one of nsqadmin's tokens. `sparq admin` itself talks to the
daemons directly; its changes are in the daemons' logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from yarl import URL

from sparq.cluster.figures import NsqdFigures, state_of
from sparq.cluster.rows import ChannelRow, NodeStats, TopicRow, tables
from sparq.cluster.upstream import UpstreamError
from sparq.options.mistakes import suggestion
from sparq.protocol.address import lookupd_url
from sparq.protocol.names import quote
from sparq.tools.admin.job import Job, in_words, known, producers_of
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.tables import table

TOPIC: Final = ("topic", "channels", "waiting", "messages", "paused", "nsqds")
FIGURES: Final = (
    *("state", "depth", "lag_seconds", "in_flight", "deferred", "requeued", "timed_out"),
    *("messages", "clients", "paused"),
)
NODE: Final = ("address", "host", "version", "state", "error", "topics", "waiting", "tcp_port")

AUDIT: Final = (
    *("time", "user", "via", "remote", "action", "topic", "channel", "node", "outcome"),
    "detail",
)
AUDIT_PAGE_MAX: Final = 1000


async def list_them(job: Job) -> int:
    """Print what the words ask for; return the exit status.

    Raises:
        UsageError: `--nodes` takes no words.
        ToolError: no daemon answered, or there is no such topic or channel.
    """
    if job.options.nodes and job.topic:
        raise UsageError("--nodes takes no topic")
    nodes = None
    if job.topic:
        producers = await producers_of(job.fleet, job.topic)
        job.errors |= known(producers.errors)
        nodes = producers.value
    stats = await job.fleet.stats(job.topic, job.channel, nodes=nodes)
    job.errors |= known(stats.errors)
    if stats.failed and not job.errors and not job.topic:
        raise ToolError("no nsqd found")
    # One request shows no rate and no time, so `stuck` is not among the states, and the lag is
    # unknown if an nsqd does not report the age of its oldest waiting message, as Go's.
    answers = {address: (NodeStats(each, 0.0), None) for address, each in stats.value.items()}
    names: tuple[str, ...] = TOPIC
    if job.options.nodes:
        names, rows = NODE, await _nodes(job, stats.value)
    elif job.channel:
        names, rows = ("nsqd", *FIGURES), []
        for address, answer in sorted(answers.items()):
            row = tables([answer], job.topic).channels.find(job.topic, job.channel)
            rows += [] if row is None else [{"nsqd": address, **_figures(row)}]
        if not rows and not job.errors:
            raise ToolError(f"no nsqd has the {job.what}")
    elif job.topic:
        topics, channels, *_ = tables(answers.values(), job.topic)
        if not topics and not job.errors:
            known_names = (await job.fleet.topics()).value
            if job.topic not in known_names:
                near = suggestion(job.topic, known_names)
                raise ToolError(f"there is no topic {job.topic}{near}")
        names = ("channel", *FIGURES, "nsqds")
        rows = [{"channel": row.channel, **_figures(row), "nsqds": row.nodes} for row in channels]
    else:
        named = await job.fleet.topics()
        job.errors |= known(named.errors)
        nowhere = dict.fromkeys(TOPIC, 0) | {"paused": False}
        found: dict[str, dict[str, Any]] = {
            name: {**nowhere, "topic": name} for name in named.value
        }
        for each in tables(answers.values()).topics:
            found[each.topic] = {**_shown(each, TOPIC[:-1]), "nsqds": each.nodes}
        rows = [found[name] for name in sorted(found)]
    return await job.show({"rows": rows}, *table(names, rows))


def _shown(row: ChannelRow | TopicRow, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _figures(row: ChannelRow) -> dict[str, Any]:
    """Return a channel's figures, as in JSON."""
    state = state_of(row.state, topic_paused=row.topic_paused)
    return {"state": state, **_shown(row, (*FIGURES[1:], "topic_paused"))}


async def _nodes(job: Job, stats: Mapping[str, NsqdFigures]) -> list[dict[str, Any]]:
    rows = []
    for node in (await job.fleet.nodes()).value:
        each = stats.get(node.address)
        row = {
            "address": node.address,
            "host": node.hostname,
            "version": node.version,
            "state": "gone" if each is None else each.state,
            "error": job.errors.get(node.address, ""),
            "topics": None if each is None else len(each.topics),
            "waiting": None if each is None else sum(topic.waiting for topic in each.topics),
            "tcp_port": str(node.tcp_port),
        }
        rows.append(row)
    return rows


async def audit(job: Job) -> int:
    """Print audit entries; return the exit status.

    Raises:
        UsageError: nsqadmin's address is not valid.
        ToolError: nsqadmin does not answer, or denies access.
    """
    options, address = job.options, job.options.nsqadmin_http_address
    path = _nsqadmin(job, "/api/v2/audit")
    filters = {name: getattr(options, name) for name in ("user", "action", "topic", "outcome")}
    entries: list[dict[str, Any]] = []
    before = ""
    while len(entries) < options.limit:
        limit = str(min(AUDIT_PAGE_MAX, options.limit - len(entries)))
        try:
            answer = await job.fleet.upstream.get(
                address, path, before=before, limit=limit, **filters
            )
        except UpstreamError as error:
            raise _refused(address, error, "read") from None
        found = answer if isinstance(answer, dict) else {}
        entries += [one for one in found.get("entries") or () if isinstance(one, dict)]
        following = found.get("next")
        if not isinstance(following, str) or following == before:
            break
        before = following
    entries = entries[: options.limit]
    return await job.show({"entries": entries}, *table(AUDIT, entries))


async def dismiss(job: Job) -> int:
    """Have nsqadmin no longer show an nsqd that is gone; return the exit status.

    Raises:
        UsageError: nsqadmin's address is not valid.
        ToolError: the nsqd is not gone, or nsqadmin does not answer, or denies access.
    """
    path = _nsqadmin(job, f"/api/v2/nodes/{job.topic}/dismiss")
    address = job.options.nsqadmin_http_address
    try:
        await job.fleet.upstream.post(address, path, content_type="application/json")
    except UpstreamError as error:
        if error.code.startswith("NODE_NOT_FOUND"):
            raise ToolError(f"nsqadmin {address} shows no gone nsqd {quote(job.topic)}") from None
        raise _refused(address, error, "operate") from None
    return await job.show({"dismissed": job.topic}, f"dismissed {job.topic}")


def _nsqadmin(job: Job, path: str) -> str:
    """Return a path of nsqadmin's, below its base path, and allow calling it."""
    address = job.options.nsqadmin_http_address
    try:
        base = URL(lookupd_url(address)).path.rstrip("/")
    except ValueError as error:
        raise UsageError(f"--nsqadmin-http-address {error}") from None
    job.fleet.upstream.set_configured((address,))
    return base + path


def _refused(address: str, error: UpstreamError, role: str) -> ToolError:
    advice = "start it, or name another one with --nsqadmin-http-address"
    if error.status in (401, 403):
        advice = f"use --token=@FILE with a token that may {role}"
    elif error.status:
        advice = "check that --nsqadmin-http-address is the address of sparq's nsqadmin"
    return ToolError(f"nsqadmin {address}: {in_words(error.reason)}: {advice}")
