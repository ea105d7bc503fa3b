"""`audit`: who did what through nsqadmin, as its audit log has it, the newest first.

nsqadmin is asked over its API; `--token` is one of its own tokens then. What is done with `sparq
admin` itself goes to the daemons directly, and is in their logs.
"""

from __future__ import annotations

from typing import Any, Final

from yarl import URL

from sparq.client.address import lookupd_url
from sparq.cluster.upstream import UpstreamError
from sparq.tools.admin.job import Job
from sparq.tools.command_line import Failed, UsageError

HEADINGS: Final = (
    *("time", "user", "via", "remote", "action", "topic", "channel", "node", "outcome"),
    "detail",
)
PAGE_MAX: Final = 1000
PATH: Final = "/api/v2/audit"


async def audit(job: Job) -> int:
    """Print entries; the exit status.

    Raises:
        UsageError: nsqadmin's address is none.
        Failed: nsqadmin does not answer, or does not allow it.
    """
    address = job.options.nsqadmin_http_address
    try:
        path = URL(lookupd_url(address)).path.rstrip("/") + PATH
    except ValueError as error:
        raise UsageError(f"--nsqadmin-http-address {error}") from None
    job.fleet.upstream.own((address,))
    entries = await _entries(job, address, path)
    if job.options.json:
        await job.say_json({"entries": entries})
    else:
        await job.show(HEADINGS, entries, len(HEADINGS))
    return 0


async def _entries(job: Job, address: str, path: str) -> list[dict[str, Any]]:
    options = job.options
    filters = {name: getattr(options, name) for name in ("user", "action", "topic", "outcome")}
    entries: list[dict[str, Any]] = []
    before = ""
    while len(entries) < options.limit:
        limit = str(min(PAGE_MAX, options.limit - len(entries)))
        try:
            answer = await job.fleet.upstream.get(
                address, path, before=before, limit=limit, **filters
            )
        except UpstreamError as error:
            raise Failed(f"nsqadmin {address}: {error.reason}: {_advice(error.status)}") from None
        found = answer if isinstance(answer, dict) else {}
        entries += [one for one in found.get("entries") or () if isinstance(one, dict)]
        following = found.get("next")
        if not isinstance(following, str) or following == before:
            break
        before = following
    return entries[: options.limit]


def _advice(status: int) -> str:
    if status in (401, 403):
        return "give a token that may read: --token=@FILE"
    if status:
        return "is that sparq's nsqadmin? --nsqadmin-http-address names it"
    return "start it, or name another one with --nsqadmin-http-address"
