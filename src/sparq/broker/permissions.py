"""A client's permissions, from an authd's answer or from its token's line in the token file.

An authd's answer is JSON: `ttl` (seconds), `identity`, `identity_url`, and `authorizations`, each
with a `topic` pattern, `channels` patterns and `permissions` (docs/protocol.md, "Authorization").

1. An answer that does not have exactly this form is rejected: nothing is guessed.
2. Patterns are searched for, unanchored. To publish, a pattern in `channels` must match the empty
   string; an entry without channels allows no publishing.
3. Results are cached: each publish checks its permission.
4. The size of an answer is bounded, and so is the longest search for all its patterns: no client's
   patterns can stall the other clients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sparq.broker.patterns import COST_MAX, Pattern, PatternError, compiled
from sparq.options.units import SECOND
from sparq.protocol.go_json import to_bytes

AUTHORIZATIONS_MAX: Final = 1_000
PATTERNS_MAX: Final = 5_000
REMEMBERED_MAX: Final = 1_024
TTL_MAX: Final = 10 * 365 * 86_400
"""Seconds; a longer `ttl` is cut to this, which is practically unlimited."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"


class AnswerError(ValueError):
    """An invalid answer from an authd."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """Topic and channel patterns, and the permissions that they grant."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str | None) -> bool:
        """Whether this entry grants the permission; channel "": publishing, None: any channel."""
        if permission not in self.permissions or not self.topic.search(topic):
            return False
        if channel is None:
            return bool(self.channels)
        return any(one.search(channel) for one in self.channels)


class Entry(Protocol):
    """What one entry of permissions allows."""

    def allows(self, permission: str, topic: str, channel: str | None) -> bool:
        """Whether it grants the permission; channel "": publishing, None: any channel."""


class Permissions:
    """The permissions from one authd answer, or from a token.

    Attributes:
        identity, identity_url: the client's identity according to the authd.
        count: the number of authorizations.
    """

    def __init__(
        self, identity: str, identity_url: str, ttl_ns: int, entries: tuple[Entry, ...]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.count = len(entries)
        self._ttl_ns = ttl_ns
        self._entries = entries
        self._known: dict[tuple[str, str | None], bool] = {}
        self._expires_ns = 0

    def begin(self, mono_ns: int) -> None:
        """Start the time to live."""
        self._expires_ns = mono_ns + self._ttl_ns

    def has_expired(self, mono_ns: int) -> bool:
        """Whether the time to live is over, so that the authd must be asked again."""
        return mono_ns >= self._expires_ns

    def allows(self, topic: str, channel: str | None = "") -> bool:
        """Whether the client may subscribe to the channel.

        Channel "": whether it may publish to the topic. None: whether it may subscribe to some
        channel of the topic, and may therefore read its log.
        """
        key = topic, channel
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                # The oldest answer goes: a client chooses the names, so their number must be
                # bounded.
                del self._known[next(iter(self._known))]
            permission = PUBLISH if channel == "" else SUBSCRIBE
            known = any(entry.allows(permission, topic, channel) for entry in self._entries)
            self._known[key] = known
        return known

    def reply_data(self) -> bytes:
        """The data of the response frame for AUTH."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.count,
        }
        return to_bytes(answer)


def read(body: bytes) -> Permissions:
    """Read an authd's answer. This may be slow; the parsed data is not shared with other threads.

    Raises:
        AnswerError: the answer is invalid; the text gives the reason, but no client data.
    """
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise AnswerError("the answer is not JSON") from None
    if not isinstance(answer, dict):
        raise AnswerError("the answer is not a JSON object")
    entries = _entries(_list(answer, "authorizations", dict))
    ttl_s = _value(answer, "ttl", int, 0)
    if ttl_s <= 0:
        raise AnswerError(f"invalid TTL {ttl_s} (must be >0)")
    identity = _value(answer, "identity", str, "")
    url = _value(answer, "identity_url", str, "")
    return Permissions(identity, url, min(ttl_s, TTL_MAX) * SECOND, entries)


def _entries(given: list[dict[str, Any]]) -> tuple[Authorization, ...]:
    """Parse the authorizations; limits are checked while reading, before too many are held."""
    if len(given) > AUTHORIZATIONS_MAX:
        raise AnswerError(f"more than {AUTHORIZATIONS_MAX} authorizations")
    entries = []
    count = cost = 0
    for one in given:
        permissions = frozenset(_list(one, "permissions", str))
        for unknown in permissions - {SUBSCRIBE, PUBLISH}:
            raise AnswerError(f"unknown permission {unknown[:100]!r}")
        texts = [_value(one, "topic", str, ""), *_list(one, "channels", str)]
        count += len(texts)
        if count > PATTERNS_MAX:
            raise AnswerError(f"more than {PATTERNS_MAX} patterns")
        patterns = []
        for text in texts:
            try:
                pattern, steps = compiled(text)
            except PatternError as error:
                raise AnswerError(f"invalid pattern {text[:100]!r}: {error}") from None
            patterns.append(pattern)
            cost += steps
            if cost > COST_MAX:
                raise AnswerError("the patterns take too long to search for")
        entries.append(Authorization(patterns[0], tuple(patterns[1:]), permissions))
    return tuple(entries)


def _value(answer: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    """A value of exactly this type; the default if it is missing or null."""
    value = answer.get(key)
    if value is None:
        return default
    # Not `isinstance`: a bool is an int in Python, and `"ttl": true` must be refused.
    if type(value) is not kind:
        raise AnswerError(f"{key} has the wrong type")
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent on
    return value


def _list(answer: dict[str, Any], key: str, kind: type) -> list[Any]:
    found: list[Any] = _value(answer, key, list, [])
    if not all(type(one) is kind for one in found):
        raise AnswerError(f"an item of {key} has the wrong type")
    return found
