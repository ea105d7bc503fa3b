"""Intruders: each request with each token; only what docs/access.md allows may have an effect.

`ACTIONS` says which roles each action needs, written from the page and not from the code. An effect
is seen in the nsqd itself, as the operator sees it afterwards, and for what only reads, in the
answer: a status proves nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from proofs.operator_day_parts.book import Findings
from proofs.operator_day_parts.site import OPERATOR, SecureNsqd, Site, ask
from proofs.workload import until, wait_until
from sparq.client import Consumer, Producer
from sparq.client.errors import ConnectionLostError, PublishError
from sparq.protocol.errors import RemoteError

Ask = Callable[[str, str, bytes | None], tuple[int, bytes]]
"""Sends one request: method, path and body."""

PREFIX, CHANNEL = "vault.", "c"
SECRET: Final = "kept-secret"
MESSAGES, FINISHED = 5, 2
TRY_SECONDS: Final = 2.0
KEYS: Final = (
    *("topic_name", "channel_name", "depth", "message_count", "message_bytes", "paused"),
    *("in_flight_count", "deferred_count", "requeue_count", "finish_count", "voided_count"),
)
"""What shows an effect in `/stats`; the rest also changes by itself, such as what is synced."""

READERS: Final = ("read", "bodies", "consume", "operate", "administer")
LOOKERS: Final = ("bodies", "consume")
OPERATORS: Final = ("operate", "administer")
ADMINS: Final = ("administer",)
PUBLISHERS: Final = ("publish",)
COPIERS: Final = ("bodies_and_publish",)

OF_ROLES: Final = ("read", "bodies", "publish", "consume", "operate", "administer", "register")
OTHER_TOPICS: Final = ",".join(f"{role}:other*" for role in OF_ROLES)
STRANGERS: Final = ("of_other_topics", "expired", "unknown", "none")


class Action(NamedTuple):
    """A request, and who may make it; `shows`: what its answer has if it had an effect."""

    name: str
    method: str
    path: str
    allowed: Sequence[str]
    body: str = ""
    shows: str = ""


VAULT: Final = f"topic={{topic}}&channel={CHANNEL}"
ACTIONS: Final = (
    Action("stats", "GET", "/stats?format=json&topic={topic}", READERS, shows='"{topic}"'),
    Action("metrics", "GET", "/metrics", READERS, shows='topic="{topic}"'),
    Action("look at bodies", "GET", f"/channel/messages?{VAULT}", LOOKERS, shows=SECRET),
    Action("search", "GET", f"/topic/search?topic={{topic}}&text={SECRET}", LOOKERS, shows=SECRET),
    Action("message", "GET", f"/message?{VAULT}&id={{waiting}}", LOOKERS, shows=SECRET),
    Action("pub", "POST", "/pub?topic={topic}", PUBLISHERS, "x"),
    Action("mpub", "POST", "/mpub?topic={topic}", PUBLISHERS, "x\ny"),
    Action("mpub to one channel", "POST", f"/mpub?{VAULT}", PUBLISHERS, "x"),
    Action("create topic", "POST", "/topic/create?topic={topic}.new", OPERATORS),
    Action("create channel", "POST", "/channel/create?topic={topic}&channel=new", OPERATORS),
    Action("pause topic", "POST", "/topic/pause?topic={topic}", OPERATORS),
    Action("pause channel", "POST", f"/channel/pause?{VAULT}", OPERATORS),
    Action("seek back", "POST", f"/channel/seek?{VAULT}&to=earliest", OPERATORS),
    Action("requeue", "POST", f"/message/requeue?{VAULT}&id={{finished}}", OPERATORS),
    Action("drain topic", "POST", "/topic/drain?topic={topic}", OPERATORS),
    Action("seek that skips", "POST", f"/channel/seek?{VAULT}&to=latest", ADMINS),
    Action("finish", "POST", f"/message/finish?{VAULT}&id={{waiting}}", ADMINS),
    Action("cancel", "POST", f"/message/cancel?{VAULT}&id={{deferred}}", ADMINS),
    Action("empty channel", "POST", f"/channel/empty?{VAULT}", ADMINS),
    Action("delete channel", "POST", f"/channel/delete?{VAULT}", ADMINS),
    Action("delete topic", "POST", "/topic/delete?topic={topic}", ADMINS),
    Action("policies", "PUT", "/policies", ADMINS, "{policies}"),
    Action("drain", "POST", "/drain", ADMINS),
    Action("config", "PUT", "/config/log_level", ADMINS, "warn"),
    Action(
        "copy",
        "POST",
        "/message/copy?topic={topic}&to={topic}.copy&id={waiting}",
        COPIERS,
    ),
)

NAMED: Final = f'"topic":"{{topic}}","channel":"{CHANNEL}"'
V2: Final = "/api/v2"
NSQADMINS_ROLES: Final = ("read", "bodies", "operate", "administer", "publish")
NSQADMINS_ACTIONS: Final = (
    Action(
        "look at bodies", "GET", f"{V2}/messages?{VAULT}&bodies=true", ("bodies",), shows=SECRET
    ),
    Action("pause", "POST", f"/api/topics/{{topic}}/{CHANNEL}", OPERATORS, '{{"action":"pause"}}'),
    Action("seek", "POST", f"{V2}/seek", OPERATORS, f'{{{{{NAMED},"to":"earliest"}}}}'),
    Action("seek that skips", "POST", f"{V2}/seek", ADMINS, f'{{{{{NAMED},"to":"latest"}}}}'),
    Action("empty", "POST", f"/api/topics/{{topic}}/{CHANNEL}", ADMINS, '{{"action":"empty"}}'),
    Action("delete", "DELETE", f"/api/topics/{{topic}}/{CHANNEL}", ADMINS, "{{}}"),
    Action(
        "publish",
        "POST",
        f"{V2}/actions",
        PUBLISHERS,
        '{{"action":"publish_message","topic":"{topic}","node":"{node}","body":"x"}}',
    ),
)
"""What nsqadmin may be asked, and who may ask it (docs/nsqadmin_rights.md)."""


class Intruders:
    """Try all actions at one nsqd; the topics `vault.*` are theirs alone.

    Args:
        site: the daemons; tokens for all roles are added to its file.
        nsqd: the nsqd that has the topic.
        found: gets what went wrong.
    """

    def __init__(self, site: Site, nsqd: SecureNsqd, found: Findings) -> None:
        self.site, self.nsqd, self.found = site, nsqd, found
        self.made = 0
        self.ids: dict[str, str] = {}
        self.policies: list[dict[str, Any]] = []
        for role in OF_ROLES:
            site.tokens.give(role, role)
        site.tokens.give(COPIERS[0], "bodies,publish")
        site.tokens.give(STRANGERS[0], OTHER_TOPICS)
        site.tokens.give("expired", ",".join(OF_ROLES), "2020-01-01")
        for role in NSQADMINS_ROLES:
            site.admin_tokens.give(role, role)
        site.tokens.shown |= {"unknown": f"nsq_{secrets.token_urlsafe(32)}", "none": ""}
        site.tokens.own_file("unknown").write_text(site.tokens.shown["unknown"])

    @property
    def names(self) -> list[str]:
        """All tokens."""
        return [*OF_ROLES, *COPIERS, *STRANGERS]

    def try_all(self, names: Iterable[str], actions: Sequence[Action] = ACTIONS) -> None:
        """Try the actions with these tokens, once nsqd has read them."""
        wait_until(lambda: self.ask("read", "GET", "/info")[0] == 200, "the tokens are read")
        self.policies = self.nsqd.get_json("/policies")["policies"]
        self.furnish()
        for action in actions:
            for name in names:
                self.attempt(name, action)

    def try_nsqadmin(self) -> None:
        """Try nsqadmin's actions with a token of each of its roles, and with none."""
        tokens = {role: self.site.admin_tokens.shown[role] for role in NSQADMINS_ROLES}
        tokens |= {"unknown": self.site.tokens.shown["unknown"], "none": ""}
        for action in NSQADMINS_ACTIONS:
            for name, token in tokens.items():
                wait_until(self._is_listed, "the topic is listed")
                self.attempt(name, action, partial(ask, self.site.nsqadmin.http_port, token))

    def attempt(self, name: str, action: Action, ask: Ask | None = None) -> None:
        """Try an action with a token, and restore what it has changed; `ask`: at nsqadmin."""
        before = self.state()
        policies = json.dumps({"policies": self._other_policies()})
        path = action.path.format(**self.ids)
        body = action.body.format(**self.ids, policies=policies)
        ask_it = ask or partial(self.ask, name)
        _, answer = ask_it(action.method, path, body.encode() or None)
        what = action.name
        if action.shows:
            effect = action.shows.format(**self.ids) in answer.decode()
        else:
            after = self.state()
            effect = after != before
            changed = [
                f"{before[key]} became {after[key]}" for key in after if before[key] != after[key]
            ]
            shown = "; ".join(changed) or answer[:200].decode(errors="replace")
            what = f"{what}{' at nsqadmin' * (ask is not None)}: {shown}"
        self.found.note_attempt(name, what, allowed=self._may(name, action), effect=effect)
        if effect and not action.shows:
            self.furnish()

    def ask(
        self, name: str, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Send one request with a token of this name."""
        return self.nsqd.request_as(self.site.tokens.shown[name], method, path, body)

    def _may(self, name: str, action: Action) -> bool:
        if name == COPIERS[0]:
            return bool({"bodies", "publish", *COPIERS} & {*action.allowed})
        return name in action.allowed

    def _other_policies(self) -> list[dict[str, Any]]:
        return [*self.policies, {"topic": f"{PREFIX}*", "max_topic_messages": 1_000_000}]

    def furnish(self) -> None:
        """Make a new topic: finished, waiting and deferred messages in one channel."""
        document = json.dumps({"policies": self.policies}).encode()
        for method, path, body in (
            ("DELETE", "/drain", None),
            ("PUT", "/policies", document),
            ("PUT", "/config/log_level", b"info"),
        ):
            self.nsqd.request(method, path, body)
        self._delete()
        # Of a deleted topic, nsqlookupd would still name the channels.
        self.made += 1
        topic = f"{PREFIX}{self.made}"
        where = f"topic={topic}&channel={CHANNEL}"
        self.nsqd.post(f"/topic/create?topic={topic}")
        self.nsqd.post(f"/channel/create?{where}")
        self.nsqd.post(f"/mpub?topic={topic}", b"\n".join([SECRET.encode()] * MESSAGES))
        self.nsqd.post(f"/pub?topic={topic}&defer=3000000", SECRET.encode())
        listed = self.nsqd.get_json(f"/topic/messages?topic={topic}&from=earliest")["messages"]
        ids = [one["id"] for one in listed]
        self.nsqd.post(f"/message/finish?{where}", json.dumps({"ids": ids[:FINISHED]}).encode())
        self.ids = {"topic": topic, "finished": ids[0], "waiting": ids[FINISHED]}
        self.ids |= {"deferred": ids[-1], "node": self.nsqd.http}

    def _delete(self) -> None:
        """Delete the topic, and what an action has made beside it."""
        topic = self.ids.get("topic", "")
        for name in (topic, f"{topic}.new", f"{topic}.copy"):
            self.nsqd.request("POST", f"/topic/delete?topic={name}")
        self.nsqd.request("DELETE", f"/topic/drain?topic={topic}")

    def state(self) -> dict[str, Any]:
        """Return what an action may change, as the operator sees it."""
        stats = self.nsqd.get_json("/stats?format=json&include_clients=false&include_mem=false")
        topics = [t for t in stats["topics"] or () if t["topic_name"].startswith(PREFIX)]
        drain = self.nsqd.get_json("/drain")
        return {
            "topics": [_shown(part) for t in topics for part in (t, *(t["channels"] or ()))],
            "policies": self.nsqd.get_json("/policies")["policies"],
            "draining": drain["draining"],
            "draining_topics": [*drain["draining_topics"]],
            "log_level": self.nsqd.get_json("/config/log_level"),
        }

    async def connect(self, names: Iterable[str]) -> None:
        """Publish and subscribe over V2 with each token, at the same time."""
        self.furnish()
        topic = self.ids["topic"]
        before = self._named(topic)["message_count"]
        subscribing = asyncio.gather(*(self._subscribe(name, topic) for name in names))
        accepted = await asyncio.gather(*(self._publish(name, topic) for name in names))
        await subscribing
        for name, is_stored in zip(names, accepted, strict=True):
            may = name in (*PUBLISHERS, *COPIERS)
            self.found.note_attempt(name, "PUB", allowed=may, effect=is_stored)
        count = self._named(topic)["message_count"] - before
        self.found.note_attempt("V2", "PUB", allowed=True, effect=count == sum(accepted))
        made = {channel["channel_name"] for channel in self._named(topic)["channels"]}
        for name in names:
            self.found.note_attempt(name, "SUB", allowed=name == "consume", effect=name in made)

    def _named(self, topic: str) -> dict[str, Any]:
        (found,) = self.nsqd.get_json(f"/stats?format=json&topic={topic}")["topics"]
        return dict(found)

    async def _publish(self, name: str, topic: str) -> bool:
        config = self.site.config(name, publish_timeout=TRY_SECONDS, stop_timeout=0.0)
        async with Producer(self.nsqd.tcp, config=config) as producer:
            with suppress(PublishError, RemoteError):
                await producer.publish(topic, b"by an intruder")
                return True
        return False

    async def _subscribe(self, name: str, topic: str) -> None:
        config = self.site.config(name, stop_timeout=0.0)
        async with Consumer(topic, name, nsqd_tcp_addresses=self.nsqd.tcp, config=config) as one:
            with suppress(ConnectionLostError):
                await one.until_connected(TRY_SECONDS)

    async def seek_by_program(self, names: Iterable[str]) -> None:
        """Try `sparq admin seek ... latest` with these tokens: only `administer` may skip."""
        self.furnish()
        for name in names:
            await until(self._is_listed, "the topic is listed")
            before = self.state()
            await self.site.admin("seek", self.ids["topic"], CHANNEL, "latest", "--yes", token=name)
            effect = self.state() != before
            self.found.note_attempt(
                name, "sparq admin seek", allowed=name in (*ADMINS, OPERATOR), effect=effect
            )
            if effect:
                self.furnish()

    def _is_listed(self) -> bool:
        topic = self.ids["topic"]
        listed = [
            self.site.look_up(each, f"/channels?topic={topic}") for each in self.site.lookupds
        ]
        return all(CHANNEL in each["channels"] for each in listed)

    def leave(self) -> None:
        """Delete the topics, at the nsqlookupds too."""
        self.furnish()
        self._delete()
        for lookupd in self.site.lookupds:
            for topic in self.site.look_up(lookupd, "/topics")["topics"]:
                if topic.startswith(PREFIX):
                    self.site.forget(lookupd, topic)


def _shown(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part[key] for key in KEYS if key in part}
