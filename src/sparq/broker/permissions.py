"""What a client may do, as an authd or the line of its token has said it.

An authd's answer is JSON: `ttl` (seconds), `identity`, `identity_url`, and `authorizations`, each
with a `topic` pattern, `channels` patterns and `permissions` (reference: wire.md 1.8). Here:

1. An answer that is not exactly of that form is no answer: nothing is guessed.
2. Patterns are searched for, unanchored. To publish, an entry of `channels` must match the empty
   string; an entry without channels lets nobody publish.
3. What was asked once is remembered: publishing asks with each command.
4. An answer is bounded in what it may hold, and a question in the steps that it may take: one that
   takes more is answered with no. So nobody's patterns stop the other clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sparq.broker.options import SECOND_NS
from sparq.protocol.names import NAME_SIZE_MAX
from sparq.protocol.patterns import Patience, Pattern, PatternError, TooLong

AUTHORIZATIONS_MAX: Final = 1_000
PATTERNS_MAX: Final = 5_000
INSTRUCTIONS_MAX: Final = 20_000
"""The programs of all patterns of one answer; they bound what it costs in memory."""

QUESTION_STEPS_MAX: Final = 60_000
"""About 25 ms; a thousand anchored patterns take 3,000, a thousand others 30,000 for most names."""

HEAVY_STEPS: Final = 20_000
"""From here on questions are asked one at a time, with pauses (nsqd/auth.py)."""

REMEMBERED_MAX: Final = 1_024
TTL_MAX: Final = 10 * 365 * 86_400
"""Beyond it an answer holds as good as for ever."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"

COMPILED_MAX: Final = 1_024
COMPILED_SIZE_MAX: Final = 200
"""Characters, and instructions, of a pattern that is kept for the next client's answer."""

_compiled: dict[str, Pattern] = {}


class AnswerError(ValueError):
    """An authd's answer that says nothing."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """Topics and channels by pattern, and what may be done with them."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str | None, patience: Patience) -> bool:
        """Whether this entry allows it; the channel is empty for publishing, None for any.

        Raises:
            TooLong: it cannot be told in so many steps.
        """
        if permission not in self.permissions or not self.topic.search(topic, patience):
            return False
        if channel is None:
            return bool(self.channels)
        return any(one.search(channel, patience) for one in self.channels)


class Permissions:
    """One answer of an authd, or what a token gives.

    Attributes:
        identity, identity_url: whom the authd took the client for.
        count: the number of authorizations.
    """

    def __init__(
        self, identity: str, identity_url: str, ttl_ns: int, entries: tuple[Authorization, ...]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.count = len(entries)
        self._ttl_ns = ttl_ns
        self._entries = entries
        self._known: dict[tuple[str, str | None], bool] = {}
        self._expires_ns = 0
        size = sum(len(one) for entry in entries for one in (entry.topic, *entry.channels))
        self._is_heavy = size * NAME_SIZE_MAX > HEAVY_STEPS

    def begin(self, mono_ns: int) -> None:
        """The time to live begins."""
        self._expires_ns = mono_ns + self._ttl_ns

    def has_expired(self, mono_ns: int) -> bool:
        """Whether the authd must be asked again."""
        return mono_ns >= self._expires_ns

    def is_heavy(self, topic: str, channel: str | None) -> bool:
        """Whether the answer to this may take milliseconds."""
        return self._is_heavy and (topic, channel) not in self._known

    def allows(self, topic: str, channel: str | None = "") -> bool:
        """Whether the client may subscribe to the channel.

        Without a channel: whether it may publish to the topic. None: whether it may subscribe to
        some channel of the topic, and so read its log.
        """
        key = topic, channel
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                del self._known[next(iter(self._known))]
            known = self._known[key] = self._ask(topic, channel)
        return known

    def _ask(self, topic: str, channel: str | None) -> bool:
        permission = PUBLISH if channel == "" else SUBSCRIBE
        patience = Patience(QUESTION_STEPS_MAX)
        try:
            return any(e.allows(permission, topic, channel, patience) for e in self._entries)
        except TooLong:
            return False

    def reply_data(self) -> bytes:
        """The data of the response frame to AUTH."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.count,
        }
        return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()


def granted(identity: str, granted: Iterable[tuple[str, str]], ttl_ns: int) -> Permissions:
    """What a token gives, for channels of any name.

    Args:
        identity: the token's name.
        granted: patterns of topics, in which `*` stands for any text and `?` for one character,
            each with a permission.
        ttl_ns: how long it holds.
    """
    entries = tuple(
        Authorization(_pattern(_anchored(topics)), (_pattern(""),), frozenset((permission,)))
        for topics, permission in granted
    )
    return Permissions(identity, "", min(ttl_ns, TTL_MAX * SECOND_NS), entries)


_WILD: Final = {"*": ".*", "?": ".", ".": r"\."}


def _anchored(topics: str) -> str:
    """A pattern of topics as an authd would write it."""
    return f"^{''.join(_WILD.get(letter, letter) for letter in topics)}$"


def read(body: bytes) -> Permissions:
    """Read an authd's answer. It may take a while; nothing here is shared with other threads.

    Raises:
        AnswerError: it says nothing; the text tells why, and nothing of what the client sent.
    """
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise AnswerError("the answer is no JSON") from None
    if not isinstance(answer, dict):
        raise AnswerError("the answer is no JSON object")
    entries = _entries(_list(answer, "authorizations", dict))
    ttl_s = _value(answer, "ttl", int, 0)
    if ttl_s <= 0:
        raise AnswerError(f"invalid TTL {ttl_s} (must be >0)")
    identity = _value(answer, "identity", str, "")
    url = _value(answer, "identity_url", str, "")
    return Permissions(identity, url, min(ttl_s, TTL_MAX) * SECOND_NS, entries)


def _entries(said: list[dict[str, Any]]) -> tuple[Authorization, ...]:
    """The authorizations, counted as they are read: too many are never held."""
    if len(said) > AUTHORIZATIONS_MAX:
        raise AnswerError(f"more than {AUTHORIZATIONS_MAX} authorizations")
    entries = []
    patterns = instructions = 0
    for one in said:
        patterns += 1 + len(_list(one, "channels", str))
        if patterns > PATTERNS_MAX:
            raise AnswerError(f"more than {PATTERNS_MAX} patterns")
        entry = _entry(one, INSTRUCTIONS_MAX - instructions)
        instructions += len(entry.topic) + sum(map(len, entry.channels))
        entries.append(entry)
    return tuple(entries)


def _entry(entry: dict[str, Any], room: int) -> Authorization:
    permissions = frozenset(_list(entry, "permissions", str))
    for unknown in permissions - {SUBSCRIBE, PUBLISH}:
        raise AnswerError(f"unknown permission {unknown[:100]!r}")
    topic = _pattern(_value(entry, "topic", str, ""))
    room -= len(topic)
    channels = []
    for text in _list(entry, "channels", str):
        channels.append(_pattern(text))
        room -= len(channels[-1])
        if room < 0:
            break
    if room < 0:
        raise AnswerError("its patterns are too large")
    return Authorization(topic, tuple(channels), permissions)


def _pattern(text: str) -> Pattern:
    known = _compiled.get(text)
    if known is not None:
        return known
    try:
        found = Pattern(text)
    except PatternError as error:
        raise AnswerError(f"invalid pattern {text[:100]!r}: {error}") from None
    if len(text) <= COMPILED_SIZE_MAX and len(found) <= COMPILED_SIZE_MAX:
        if len(_compiled) >= COMPILED_MAX:
            _compiled.clear()
        _compiled[text] = found
    return found


def _value(answer: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    """A value of exactly this type; one that is missing or null is the default."""
    value = answer.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise AnswerError(f"its {key} is of a wrong type")
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent on
    return value


def _list(answer: dict[str, Any], key: str, kind: type) -> list[Any]:
    found: list[Any] = _value(answer, key, list, [])
    if not all(type(one) is kind for one in found):
        raise AnswerError(f"its {key} are of a wrong type")
    return found
