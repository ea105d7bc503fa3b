"""`/policies`: show and replace settings of topics and channels by pattern (docs/policies.md).

1. A document is applied as a whole: a mistake in any of its policies leaves all settings unchanged.
2. A change is answered when it is on disk; it applies from then on, also after a restart.
3. `dry_run` answers with the changes that a document would make, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.options import TOPIC_SETTINGS
from sparq.broker.policies import Policies, PolicyChange, changes
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters, policy_document
from sparq.nsqd.policy_document import BY_FIELD, DocumentError, entries, setting
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.broker.policies import Policy
    from sparq.nsqd.server import Nsqd

PATH: Final = "/policies"
CHANGES_SHOWN: Final = 1_000
BREATH: Final = 200
"""Number of topics compared before the event loop may run."""

CONFIGURED, CHOSEN, FLAGS = "configured", "policies", "flags"

logger = logging.getLogger(__name__)


class PolicyRoutes:
    """The `/policies` handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", PATH, self.show),
            Route("PUT", PATH, self.put),
            Route("DELETE", PATH, self.delete),
        ]

    def show(self, call: Call) -> dict[str, Any]:
        """Return all policies; or the settings of one topic or channel, each with its source."""
        if "topic" in call.query:
            topic = parameters.name_of(call, "topic")
            channel = parameters.name_of(call, "channel") if "channel" in call.query else None
            return holding(self._broker.policies, topic, channel)
        policies = self._broker.policies
        flags = (setting(name, getattr(policies.default, name)) for name in BY_FIELD)
        return {
            CHOSEN: entries(policies.chosen),
            CONFIGURED: entries(policies.configured),
            FLAGS: dict(flags),
        }

    async def put(self, call: Call) -> dict[str, Any]:
        """Replace the policies set at run time with those of a document."""
        text = await call.body(policy_document.BYTES_MAX, "BODY_TOO_BIG")
        is_toml = "toml" in call.request.headers.get("Content-Type", "").lower()
        try:
            # tomllib is plain Python and may take a while; a thread keeps the event loop free.
            chosen = await asyncio.to_thread(policy_document.read, text, is_toml=is_toml)
        except DocumentError as error:
            raise HttpError(400, f"INVALID_POLICIES: {error}") from error
        return await self._choose(chosen, call)

    async def delete(self, call: Call) -> dict[str, Any]:
        """Remove the policies set at run time; those of the file stay."""
        return await self._choose((), call)

    async def _choose(self, chosen: tuple[Policy, ...], call: Call) -> dict[str, Any]:
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        found = await self._changes(chosen)
        if not call.flag("dry_run", False):
            try:
                await self._nsqd.ask(lambda ticket: self._broker.choose_policies(chosen, ticket))
            except RemoteError as error:
                raise HttpError(500, f"INTERNAL_ERROR: {error.text}") from error
            logger.info(
                "HTTP: %d policies set by %s, %d settings of topics and channels changed",
                *(len(chosen), call.client, len(found)),
            )
        shown = []
        for change in found[:CHANGES_SHOWN]:
            key, before = setting(change.setting, change.before)
            _, after = setting(change.setting, change.after)
            values = {"setting": key, "before": before, "after": after}
            shown.append({"topic": change.topic, "channel": change.channel, **values})
        return {"changed": len(found), "changes": shown}

    async def _changes(self, chosen: tuple[Policy, ...]) -> list[PolicyChange]:
        """Return the changes that new policies make to existing topics; the loop runs between."""
        before, topics = self._broker.policies, self._broker.topics
        after = replace(before, chosen=chosen)
        found: list[PolicyChange] = []
        names = list(topics)
        for at in range(0, len(names), BREATH):
            some = [name for name in names[at : at + BREATH] if name in topics]
            found += changes(before, after, {name: list(topics[name].channels) for name in some})
            await asyncio.sleep(0)
        return found


def holding(policies: Policies, topic: str, channel: str | None) -> dict[str, Any]:
    """Return the settings of a topic or channel, existing or not, and the source of each."""
    scope = policies.scope(topic)
    settings = scope.settings(channel)
    origins = scope.origins(channel)
    first_chosen = len(policies.configured)
    shown: dict[str, Any] = {}
    for field in BY_FIELD:
        if channel is not None and field in TOPIC_SETTINGS:
            continue
        key, value = setting(field, getattr(settings, field))
        shown[key] = {"value": value, "source": FLAGS}
        if (place := origins.get(field)) is not None:
            is_chosen = place >= first_chosen
            number = place - first_chosen + 1 if is_chosen else place + 1
            shown[key] |= {"source": CHOSEN if is_chosen else CONFIGURED, "number": number}
    return {"topic": topic, "channel": channel, "settings": shown}
