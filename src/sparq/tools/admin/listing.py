"""`list`, `audit` and `dismiss`: topics, a topic's channels, a channel at each nsqd, or the nsqds.

Figures are sums over the nsqds that answered; docs/glossary.md defines them. A topic that only
nsqlookupds know has 0 nsqds.

`audit` lists the changes made through nsqadmin, with their users, from nsqadmin's audit log, newest
first. `dismiss` has nsqadmin no longer show an nsqd that is gone, until it answers again. Both call
nsqadmin's API; `--token` is then one of nsqadmin's tokens. `sparq admin` itself talks to the
daemons directly; its changes are in the daemons' logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from yarl import URL

from sparq.cluster.figures import ChannelFigures, NsqdFigures, TopicFigures, lag_of, state_of
from sparq.cluster.upstream import UpstreamError
from sparq.program.mistakes import suggestion
from sparq.protocol.address import lookupd_url
from sparq.protocol.names import quote
from sparq.tools.admin.job import Job, in_words, known, producers_of
from sparq.tools.commands import ToolError, UsageError

TOPIC: Final = ("topic", "channels", "waiting", "messages", "paused", "nsqds")
FIGURES: Final = (
    *("state", "depth", "lag_seconds", "in_flight", "deferred", "requeued", "timed_out"),
    *("messages", "clients", "paused"),
)
COUNTERS: Final = {
    "depth": "depth",
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "messages": "message_count",
    "clients": "client_count",
}
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
    if job.options.nodes:
        await _nodes(job, stats.value)
    elif job.channel:
        rows = []
        for address, each in sorted(stats.value.items()):
            topic, channel = each.topic(job.topic), each.channel(job.topic, job.channel)
            if topic is not None and channel is not None:
                rows.append({"nsqd": address, **summed([channel], topic.paused)})
        if not rows and not job.errors:
            raise ToolError(f"no nsqd has the {job.what}")
        await job.show(("nsqd", *FIGURES), rows, 2)
    elif job.topic:
        await _channels(job, stats.value)
    else:
        await _topics(job, stats.value)
    return job.warn_of_errors()


async def _topics(job: Job, stats: Mapping[str, NsqdFigures]) -> None:
    named = await job.fleet.topics()
    job.errors |= known(named.errors)
    found: dict[str, list[TopicFigures]] = {name: [] for name in named.value}
    for each in stats.values():
        for topic in each.topics:
            found.setdefault(topic.topic_name, []).append(topic)
    rows = []
    for name, parts in sorted(found.items()):
        figures = (
            name,
            len({channel.channel_name for topic in parts for channel in topic.channels}),
            sum(topic.waiting for topic in parts),
            sum(topic.message_count for topic in parts),
            any(topic.paused for topic in parts),
            len(parts),
        )
        rows.append(dict(zip(TOPIC, figures, strict=True)))
    await job.show(TOPIC, rows, 1)


async def _channels(job: Job, stats: Mapping[str, NsqdFigures]) -> None:
    found = [topic for each in stats.values() if (topic := each.topic(job.topic)) is not None]
    if not found and not job.errors:
        names = await job.fleet.topics()
        if job.topic not in names.value:
            raise ToolError(f"there is no topic {job.topic}{suggestion(job.topic, names.value)}")
    parts: dict[str, list[ChannelFigures]] = {}
    for topic in found:
        for channel in topic.channels:
            parts.setdefault(channel.channel_name, []).append(channel)
    topic_paused = any(topic.paused for topic in found)
    rows = [
        {"channel": name, **summed(channels, topic_paused), "nsqds": len(channels)}
        for name, channels in sorted(parts.items())
    ]
    await job.show(("channel", *FIGURES, "nsqds"), rows, 2)


async def _nodes(job: Job, stats: Mapping[str, NsqdFigures]) -> None:
    nodes = await job.fleet.nodes()
    rows = []
    for node in nodes.value:
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
    await job.show(NODE, rows, 5)


def summed(channels: Sequence[ChannelFigures], topic_paused: bool) -> dict[str, Any]:
    """Sum a channel's figures over nsqds, with its lag and state.

    One request shows no rate and no time, so `stuck` is not among the states, and the lag is
    unknown if an nsqd does not report the age of its oldest waiting message, as Go's.
    """
    figures: dict[str, Any] = {
        name: sum(getattr(channel, key) for channel in channels) for name, key in COUNTERS.items()
    }
    unfinished = figures["depth"] + figures["in_flight"]
    lag = lag_of((channel.oldest_waiting_seconds for channel in channels), unfinished, None)
    paused = any(channel.paused for channel in channels)
    state = state_of(
        topic_paused=topic_paused,
        paused=paused,
        clients=figures["clients"],
        readers=sum(bool(channel.range_reader or channel.range_query) for channel in channels),
        unfinished=unfinished,
        idle_seconds=0.0,
        lag_seconds=lag,
    )
    figures["lag_seconds"] = None if math.isnan(lag) else lag
    return {**figures, "state": state, "paused": paused, "topic_paused": topic_paused}


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
    if options.json:
        await job.say_json({"entries": entries})
    else:
        await job.show(AUDIT, entries, len(AUDIT))
    return 0


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
    done = {"dismissed": job.topic}
    await (job.say_json(done) if job.options.json else job.say(f"dismissed {job.topic}"))
    return 0


def _nsqadmin(job: Job, path: str) -> str:
    """Return a path of nsqadmin's, below its base path, and allow calling it."""
    address = job.options.nsqadmin_http_address
    try:
        base = URL(lookupd_url(address)).path.rstrip("/")
    except ValueError as error:
        raise UsageError(f"--nsqadmin-http-address {error}") from None
    job.fleet.upstream.own((address,))
    return base + path


def _refused(address: str, error: UpstreamError, role: str) -> ToolError:
    advice = "start it, or name another one with --nsqadmin-http-address"
    if error.status in (401, 403):
        advice = f"use --token=@FILE with a token that may {role}"
    elif error.status:
        advice = "check that --nsqadmin-http-address is the address of sparq's nsqadmin"
    return ToolError(f"nsqadmin {address}: {in_words(error.reason)}: {advice}")
