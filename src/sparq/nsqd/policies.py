"""`/policies`: show and replace settings of topics and channels by pattern (docs/policies.md).

1. A document is applied as a whole: a mistake in any of its policies leaves all settings unchanged.
2. A change is answered when it is on disk; it applies from then on, also after a restart.
3. `dry_run` answers with the changes that a document would make, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.options import TOPIC_SETTINGS
from sparq.broker.policies import Policies, PolicyChange, changes
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters, policy_document
from sparq.nsqd.policy_document import DocumentError
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
        default = {name: getattr(policies.default, name) for name in policy_document.FIELDS}
        return {
            CHOSEN: policy_document.entries(policies.chosen),
            CONFIGURED: policy_document.entries(policies.configured),
            FLAGS: policy_document.values(default),
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
        before = self._broker.policies
        found = await self._compared(before, before.with_chosen(chosen))
        if not call.flag("dry_run", False):
            try:
                await self._nsqd.ask(lambda ticket: self._broker.choose_policies(chosen, ticket))
            except RemoteError as error:
                raise HttpError(500, f"INTERNAL_ERROR: {error.text}") from error
            logger.info(
                "HTTP: %d policies set by %s, %d settings of topics and channels changed",
                len(chosen),
                call.client,
                len(found),
            )
        return {
            "changed": len(found),
            "changes": [_shown(change) for change in islice(found, CHANGES_SHOWN)],
        }

    async def _compared(self, before: Policies, after: Policies) -> list[PolicyChange]:
        """Return the changes that new policies make to existing topics; the loop runs between."""
        found: list[PolicyChange] = []
        names = list(self._broker.topics)
        for at in range(0, len(names), BREATH):
            batch = self._channels_of(names[at : at + BREATH])
            found += changes(before, after, batch)
            await asyncio.sleep(0)
        return found

    def _channels_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        topics = self._broker.topics
        return {name: list(topics[name].channels) for name in names if name in topics}


def holding(policies: Policies, topic: str, channel: str | None) -> dict[str, Any]:
    """Return the settings of a topic or channel, existing or not, and the source of each."""
    scope = policies.scope(topic)
    settings = scope.topic if channel is None else scope.channel(channel)
    origins = scope.origins(channel)
    shown: dict[str, Any] = {}
    for name in policy_document.FIELDS:
        if channel is not None and name in TOPIC_SETTINGS:
            continue
        value = policy_document.value_of(name, getattr(settings, name))
        entry: dict[str, Any] = {"value": value, "source": FLAGS}
        if name in origins:
            place = origins[name].place
            first = len(policies.configured)
            if place < first:
                entry |= {"source": CONFIGURED, "number": place + 1}
            else:
                entry |= {"source": CHOSEN, "number": place - first + 1}
        shown[policy_document.key_of(name)] = entry
    return {"topic": topic, "channel": channel, "settings": shown}


def _shown(change: PolicyChange) -> dict[str, Any]:
    return {
        "topic": change.topic,
        "channel": change.channel,
        "setting": policy_document.key_of(change.setting),
        "before": policy_document.value_of(change.setting, change.before),
        "after": policy_document.value_of(change.setting, change.after),
    }
