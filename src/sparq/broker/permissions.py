"""A client's permissions, from an authd's answer or from its token's line in the token file.

An authd's answer is JSON: `ttl` (seconds), `identity`, `identity_url`, and `authorizations`, each
with a `topic` pattern, `channels` patterns and `permissions` (docs/protocol.md, "Authorization").

1. An answer that does not have exactly this form is rejected: nothing is guessed.
2. Patterns are searched for, unanchored. To publish, a pattern in `channels` must match the empty
   string; an entry without channels allows no publishing.
3. Results are cached: each publish checks its permission.
4. The size of an answer is bounded, and so are the steps of one check: a check that takes more is
   denied. So no client's patterns can stall the other clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sparq.options.units import SECOND
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import NAME_SIZE_MAX
from sparq.protocol.patterns import Pattern, PatternError, StepBudget, TooManySteps

AUTHORIZATIONS_MAX: Final = 1_000
PATTERNS_MAX: Final = 5_000
INSTRUCTIONS_MAX: Final = 20_000
"""Total size of the compiled patterns of one answer; this bounds its memory."""

QUESTION_STEPS_MAX: Final = 60_000
"""About 25 ms. For most names, 1,000 anchored patterns take 3,000 steps, 1,000 others 30,000."""

HEAVY_STEPS: Final = 20_000
"""From this size on, checks run one at a time, with pauses (nsqd/auth.py)."""

REMEMBERED_MAX: Final = 1_024
TTL_MAX: Final = 10 * 365 * 86_400
"""Seconds; a longer `ttl` is cut to this, which is practically unlimited."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"

COMPILED_MAX: Final = 1_024
COMPILED_SIZE_MAX: Final = 200
"""Maximum length, in characters and in instructions, of a pattern that is cached for reuse."""

_compiled: dict[str, Pattern] = {}


class AnswerError(ValueError):
    """An invalid answer from an authd."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """Topic and channel patterns, and the permissions that they grant."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(
        self, permission: str, topic: str, channel: str | None, patience: StepBudget
    ) -> bool:
        """Whether this entry grants the permission; channel "": publishing, None: any channel.

        Raises:
            TooManySteps: the check takes more steps than `patience` allows.
        """
        if permission not in self.permissions or not self.topic.search(topic, patience):
            return False
        if channel is None:
            return bool(self.channels)
        return any(one.search(channel, patience) for one in self.channels)


class Permissions:
    """The permissions from one authd answer, or from a token.

    Attributes:
        identity, identity_url: the client's identity according to the authd.
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
        # The most that a check can take: each instruction at each character of a name.
        self._is_heavy = size * NAME_SIZE_MAX > HEAVY_STEPS

    def begin(self, mono_ns: int) -> None:
        """Start the time to live."""
        self._expires_ns = mono_ns + self._ttl_ns

    def has_expired(self, mono_ns: int) -> bool:
        """Whether the time to live is over, so that the authd must be asked again."""
        return mono_ns >= self._expires_ns

    def is_heavy(self, topic: str, channel: str | None) -> bool:
        """Whether checking this may take milliseconds."""
        return self._is_heavy and (topic, channel) not in self._known

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
            known = self._known[key] = self._ask(topic, channel)
        return known

    def _ask(self, topic: str, channel: str | None) -> bool:
        permission = PUBLISH if channel == "" else SUBSCRIBE
        patience = StepBudget(QUESTION_STEPS_MAX)
        try:
            return any(e.allows(permission, topic, channel, patience) for e in self._entries)
        # Denied, not delayed: one check must not stall the other clients (rule 4).
        except TooManySteps:
            return False

    def reply_data(self) -> bytes:
        """The data of the response frame for AUTH."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.count,
        }
        return to_bytes(answer)


def granted(identity: str, granted: Iterable[tuple[str, str]], ttl_ns: int) -> Permissions:
    """The permissions of a token, for channels of any name.

    Args:
        identity: the token's name.
        granted: topic patterns, each with a permission; `*` matches any text and `?` one
            character.
        ttl_ns: how long the permissions are valid.
    """
    entries = tuple(
        Authorization(_pattern(_anchored(topics)), (_pattern(""),), frozenset((permission,)))
        for topics, permission in granted
    )
    return Permissions(identity, "", min(ttl_ns, TTL_MAX * SECOND), entries)


_WILD: Final = {"*": ".*", "?": ".", ".": r"\."}


def _anchored(topics: str) -> str:
    """Convert a token's topic pattern to an anchored regular expression."""
    return f"^{''.join(_WILD.get(letter, letter) for letter in topics)}$"


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
    patterns = instructions = 0
    for one in given:
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
        raise AnswerError("the patterns are too large")
    return Authorization(topic, tuple(channels), permissions)


def _pattern(text: str) -> Pattern:
    # Not `re`: it backtracks, and one pattern could block the loop. Not `google-re2` either: it
    # has no wheel for Alpine or older macOS (ARCHITECTURE.md, "Tried and rejected").
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
