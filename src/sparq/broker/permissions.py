"""A client's permissions, from an authd's answer or from its token's line in the token file.

An authd's answer is JSON: `ttl` (seconds), `identity`, `identity_url`, and `authorizations`, each
with a `topic` pattern, `channels` patterns and `permissions` (docs/protocol.md, "Authorization").

1. An answer that does not have exactly this form is rejected: nothing is guessed.
2. Patterns are regular expressions that are searched for in names, unanchored. To publish, a
   pattern in `channels` must match the empty string; an entry without channels allows no
   publishing.
3. Results are cached: each publish checks its permission.
4. The size of an answer is bounded, and so is the longest search for all its patterns: no client's
   patterns can stall the other clients.

NSQ's patterns are Go's (RE2), which never backtracks. `google-re2` is that engine, and is used if
it is installed (the extra `regex`). Python's own backtracks, and one bad pattern would block every
client of an nsqd. Without `google-re2`, only patterns are accepted whose meaning is the same in
both languages and whose longest search is short: without repeated groups, and with few choices.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import import_module
from math import factorial, prod
from typing import Any, Final, Protocol

import msgspec

from sparq.options.units import SECOND
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import NAME_SIZE_MAX

try:
    re2: Any = import_module("re2")
except ImportError:
    re2 = None

AUTHORIZATIONS_MAX: Final = 1_000
PATTERNS_MAX: Final = 5_000
REMEMBERED_MAX: Final = 1_024
TTL_MAX: Final = 10 * 365 * 86_400
"""Seconds; a longer `ttl` is cut to this, which is practically unlimited."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"


COST_MAX: Final = 4_000_000
"""Steps of the longest search: with Python's engine about 30 ms."""
PATTERN_BYTES_MAX: Final = 1 << 20  # memory of a compiled pattern of `google-re2`
TEXT_MAX: Final = 8 << 10

_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
"""What JSON may contain, but UTF-8 may not."""
_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escape or a class: nothing in it is an operator."""
_SHARED_ESCAPE: Final = re.compile(r"\\(?:[dDwWsSbBAzfnrtv]|(?![0-9A-Za-z])[\0-\x7f])")
# What means something else in Go, or is not there.
_OTHER_CLASS: Final = re.compile(r"\[\^?\[|\[:|--|&&|~~|\|\|")
_OTHER_OPERATOR: Final = re.compile(r"\(\?(?!:)|\)[*+{]|\{,|[*+?}]\+")
_REPEAT: Final = re.compile(r"(?:[*+]|\{\d+,\d*\})\??")


class AnswerError(ValueError):
    """An invalid answer from an authd."""


class PatternError(ValueError):
    """A pattern is invalid, or needs `google-re2`; the text says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    def search(self, name: str, /) -> Any:
        """Find it anywhere in a name; None: it is not there."""


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


class _Entry(msgspec.Struct):
    """A missing key, or null, has the zero value, as in Go."""

    topic: str | None = None
    channels: list[str] | None = None
    permissions: list[str] | None = None


class _Answer(msgspec.Struct):
    ttl: int | None = None
    identity: str | None = None
    identity_url: str | None = None
    authorizations: list[_Entry] | None = None


def read(body: bytes) -> Permissions:
    """Read an authd's answer. This may be slow; the parsed data is not shared with other threads.

    Raises:
        AnswerError: the answer is invalid; the text gives the reason, but no client data.
    """
    try:
        answer = msgspec.convert(json.loads(body.decode("utf-8", "replace")), _Answer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise AnswerError("a value in the answer has the wrong type") from None
    except (ValueError, RecursionError):
        raise AnswerError("the answer is not JSON") from None
    entries = _entries(answer.authorizations or [])
    ttl_s = answer.ttl or 0
    if ttl_s <= 0:
        raise AnswerError(f"invalid TTL {ttl_s} (must be >0)")
    # A lone half of a surrogate pair cannot be sent on.
    identity, url = (
        (text or "").encode("utf-8", "replace").decode()
        for text in (answer.identity, answer.identity_url)
    )
    return Permissions(identity, url, min(ttl_s, TTL_MAX) * SECOND, entries)


def _entries(given: list[_Entry]) -> tuple[Authorization, ...]:
    if len(given) > AUTHORIZATIONS_MAX:
        raise AnswerError(f"more than {AUTHORIZATIONS_MAX} authorizations")
    entries = []
    count = cost = 0
    for one in given:
        permissions = frozenset(one.permissions or ())
        for unknown in permissions - {SUBSCRIBE, PUBLISH}:
            raise AnswerError(f"unknown permission {unknown[:100]!r}")
        texts = [one.topic or "", *(one.channels or ())]
        # Limits are checked while reading, before too many patterns are held.
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


def compiled(text: str) -> tuple[Pattern, int]:
    """Compile a pattern; also returns the cost of its longest search, in steps.

    Raises:
        PatternError: see there.
    """
    if len(text) > TEXT_MAX:
        raise PatternError(f"it has more than {TEXT_MAX:,} characters")
    if _HALF_CHARACTER.search(text):
        raise PatternError("it has half of a surrogate pair, which no name contains")
    if re2 is not None:
        options = re2.Options()
        options.log_errors, options.max_mem = False, PATTERN_BYTES_MAX
        try:
            return re2.compile(text, options), NAME_SIZE_MAX
        except re2.error as error:
            raise PatternError(str(error.args[0])) from None
    plain = text.removeprefix("(?i)")
    atoms, operators = _ATOM.findall(plain), _ATOM.sub("x", plain)
    left = _SHARED_ESCAPE.sub("", "".join(atoms))
    is_shared = "\\" not in left and not any(map(_OTHER_CLASS.search, atoms))
    cost = _cost(operators, is_anchored=plain.startswith(("^", r"\A")))
    if not is_shared or _OTHER_OPERATOR.search(operators) or cost > COST_MAX:
        raise PatternError("it needs the package google-re2 (pip install 'sparq-mq[regex]')")
    # The end of a text, which Python 3.11 calls \Z.
    python = _ATOM.sub(lambda one: r"\Z" if one[0] == r"\z" else one[0], plain)
    try:
        return re.compile(python, re.ASCII | (re.IGNORECASE if plain != text else 0)), cost
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(str(error)) from None


def _cost(operators: str, *, is_anchored: bool) -> int:
    """The longest search in a name, in steps: each repeat, choice and start multiplies it."""
    if operators in ("", ".*", ".+"):
        return 1
    repeats = len(_REPEAT.findall(operators))
    choices, groups = [1], [1]  # alternatives of closed groups, and of open ones
    for sign in _REPEAT.sub("", operators).replace("(?:", "("):
        if sign == "(":
            groups.append(1)
        elif sign == "|":
            groups[-1] += 1
        elif sign == ")" and len(groups) > 1:
            choices.append(groups.pop())
        elif sign == "?":
            choices.append(2)
    repeats += not is_anchored or groups[0] > 1
    steps = NAME_SIZE_MAX ** min(repeats, 6) // factorial(min(repeats, 6))
    return int(steps * prod(choices + groups))
