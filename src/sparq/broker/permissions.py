"""What a client may do, as an authd has said it.

An authd's answer is JSON: `ttl` (seconds), `identity`, `identity_url`, and `authorizations`, each
with a `topic` pattern, `channels` patterns and `permissions` (reference: wire.md 1.8). Here:

1. An answer that is not exactly of that form is no answer: nothing is guessed.
2. Patterns are searched for, unanchored. To publish, an entry of `channels` must match the empty
   string; an entry without channels lets nobody publish.
3. What was asked once is remembered: publishing asks with each command.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sparq.broker.options import SECOND_NS
from sparq.protocol.patterns import Pattern, PatternError

INSTRUCTIONS_MAX: Final = 50_000
"""The programs of all patterns of one answer; they bound how long one question can take."""

REMEMBERED_MAX: Final = 1_024
TTL_MAX: Final = 10 * 365 * 86_400
"""Beyond it an answer holds as good as for ever."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"

pattern = lru_cache(maxsize=1_024)(Pattern)


class AnswerError(ValueError):
    """An authd's answer that says nothing."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """Topics and channels by pattern, and what may be done with them."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Whether this entry allows it; the channel is empty for publishing."""
        return (
            permission in self.permissions
            and self.topic.search(topic)
            and any(one.search(channel) for one in self.channels)
        )


class Permissions:
    """One answer of an authd.

    Attributes:
        identity, identity_url: whom the authd took the client for.
        count: the number of authorizations.
    """

    def __init__(
        self, identity: str, identity_url: str, ttl_s: int, entries: tuple[Authorization, ...]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.count = len(entries)
        self._ttl_ns = ttl_s * SECOND_NS
        self._entries = entries
        self._known: dict[tuple[str, str], bool] = {}
        self._expires_ns = 0

    def begin(self, mono_ns: int) -> None:
        """The time to live begins."""
        self._expires_ns = mono_ns + self._ttl_ns

    def has_expired(self, mono_ns: int) -> bool:
        """Whether the authd must be asked again."""
        return mono_ns >= self._expires_ns

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether the client may subscribe to the channel; without one, publish to the topic."""
        key = topic, channel
        known = self._known.get(key)
        if known is None:
            permission = SUBSCRIBE if channel else PUBLISH
            known = any(entry.allows(permission, topic, channel) for entry in self._entries)
            if len(self._known) < REMEMBERED_MAX:
                self._known[key] = known
        return known

    def allows_reading(self, topic: str) -> bool:
        """Whether the client may subscribe to some channel of the topic, and so read its log."""
        return any(
            SUBSCRIBE in entry.permissions and entry.channels and entry.topic.search(topic)
            for entry in self._entries
        )

    def reply_data(self) -> bytes:
        """The data of the response frame to AUTH."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.count,
        }
        return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()


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
    entries = tuple(_entry(entry) for entry in _list(answer, "authorizations", dict))
    if sum(len(one) for e in entries for one in (e.topic, *e.channels)) > INSTRUCTIONS_MAX:
        raise AnswerError("its patterns are too large")
    ttl_s = _value(answer, "ttl", int, 0)
    if ttl_s <= 0:
        raise AnswerError(f"invalid TTL {ttl_s} (must be >0)")
    identity = _value(answer, "identity", str, "")
    url = _value(answer, "identity_url", str, "")
    return Permissions(identity, url, min(ttl_s, TTL_MAX), entries)


def _entry(entry: dict[str, Any]) -> Authorization:
    permissions = frozenset(_list(entry, "permissions", str))
    for unknown in permissions - {SUBSCRIBE, PUBLISH}:
        raise AnswerError(f"unknown permission {unknown[:100]!r}")
    channels = tuple(_pattern(text) for text in _list(entry, "channels", str))
    return Authorization(_pattern(_value(entry, "topic", str, "")), channels, permissions)


def _pattern(text: str) -> Pattern:
    try:
        return pattern(text)
    except PatternError as error:
        raise AnswerError(f"invalid pattern {text[:100]!r}: {error}") from None


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
