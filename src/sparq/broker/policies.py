"""Settings of topics and channels by name pattern: which apply to each, and how they are stored.

1. A policy has a topic pattern, an optional channel pattern, and settings. Without a channel
   pattern it applies to the matching topics and all their channels. With one it applies only to
   the matching channels, and then it has no topic-only setting.
2. Policies apply from first to last: the configuration file's before those set at run time. If
   several define a setting, the last one wins; if none does, the flags apply.
3. A pattern is a name in which `*` matches any text, including none, and `?` matches one character.
4. A set of policies is never modified, only replaced as a whole, so that no reader sees half of a
   change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from msgspec import Struct

from sparq.broker import stored_json
from sparq.broker.options import TOPIC_SETTINGS, QueueSettings
from sparq.protocol.names import (
    NAME_SIZE_MAX,
    fits,
    is_dead_letter_topic,
    is_valid_pattern,
    is_wild,
)

POLICIES_MAX: Final = 1_000
PATTERNS_MAX: Final = 100
"""Maximum number of policies with a wildcard topic: each is compared with each topic's name."""

FILE: Final = "policies.json"
NAMES: Final = frozenset(field.name for field in fields(QueueSettings))
VALUE_MAX: Final = (1 << 63) - 1


class PolicyError(ValueError):
    """An invalid policy; the text says what is wrong, and which policy (counted from 1)."""


class Policy(Struct, frozen=True):
    """One policy.

    Attributes:
        topic: a name pattern.
        channel: a name pattern; empty: the policy applies to the topics and all their channels.
        settings: fields of `QueueSettings` with their values, in the fields' units.
    """

    topic: str
    channel: str
    settings: dict[str, int]


class PolicyChange(NamedTuple):
    """A setting that new policies change for a topic (`channel` is None) or for a channel."""

    topic: str
    channel: str | None
    setting: str
    before: int
    after: int


class Scope:
    """The settings of one topic and its channels.

    Attributes:
        topic: the topic's settings.
        is_limited: whether publishes must be checked against a limit (see `bounds`).
    """

    def __init__(
        self, topic: str, default: QueueSettings, policies: Sequence[tuple[int, Policy]]
    ) -> None:
        """`policies`: the policies that match the topic, each with its place, in order."""
        self._policies = policies
        # A dead-letter topic has no dead-letter topic of its own.
        self._is_dead = is_dead_letter_topic(topic)
        self._default = replace(default, max_attempts=0) if self._is_dead else default
        self.topic = settings = self.settings(None)
        limits = (settings.max_topic_bytes, settings.max_topic_messages)
        rates = (settings.max_publish_rate, settings.max_client_publish_rate)
        self.is_limited = any((*limits, *rates))

    def settings(self, channel: str | None) -> QueueSettings:
        """The settings of the topic (None), or of a channel."""
        policies = dict(self._policies)
        found: dict[str, Any] = {
            name: policies[place].settings[name] for name, place in self.origins(channel).items()
        }
        return replace(self._default, **found) if found else self._default

    def origins(self, channel: str | None) -> dict[str, int]:
        """The settings that policies define for the topic or a channel: each policy's place."""
        return {
            name: place
            for place, policy in self._policies
            if not policy.channel or (channel is not None and fits(policy.channel, channel))
            for name in policy.settings
            if (channel is None or name not in TOPIC_SETTINGS)
            and not (self._is_dead and name == "max_attempts")
        }


@dataclass(frozen=True)
class Policies:
    """All policies of one nsqd.

    Attributes:
        default: the settings where no policy defines any.
        configured: the configuration file's policies.
        chosen: the policies that were set at run time.
    """

    default: QueueSettings
    configured: tuple[Policy, ...] = ()
    chosen: tuple[Policy, ...] = ()

    @cached_property
    def _by_topic(self) -> dict[str, list[int]]:
        """The places of the policies, in the order in which they apply, by their topic pattern."""
        places: dict[str, list[int]] = {}
        for place, policy in enumerate((*self.configured, *self.chosen)):
            places.setdefault(policy.topic, []).append(place)
        return places

    @cached_property
    def _wild(self) -> list[str]:
        """The patterns that are matched against every topic; the others are found by name."""
        return [pattern for pattern in self._by_topic if is_wild(pattern)]

    def scope(self, topic: str) -> Scope:
        """The settings of the topic of this name."""
        patterns = [topic, *(pattern for pattern in self._wild if fits(pattern, topic))]
        places = sorted(place for each in patterns for place in self._by_topic.get(each, ()))
        policies = self.configured + self.chosen
        return Scope(topic, self.default, [(place, policies[place]) for place in places])


def changes(
    before: Policies, after: Policies, names: Mapping[str, Iterable[str]]
) -> Iterator[PolicyChange]:
    """Find the settings that new policies change for existing topics and channels.

    Args:
        before: the policies in force.
        after: the new policies.
        names: the channels of each topic.
    """
    for topic, channels in names.items():
        old, new = before.scope(topic), after.scope(topic)
        for channel in (None, *channels):
            was, becomes = old.settings(channel), new.settings(channel)
            for name in sorted(NAMES) if was != becomes else ():
                values = getattr(was, name), getattr(becomes, name)
                if values[0] != values[1] and (channel is None) == (name in TOPIC_SETTINGS):
                    yield PolicyChange(topic, channel, name, *values)


def check(policies: Sequence[Policy]) -> None:
    """Refuse an invalid set of policies; raises PolicyError."""
    if len(policies) > POLICIES_MAX:
        raise PolicyError(
            f"too many policies: {len(policies)}, but at most {POLICIES_MAX} are allowed"
        )
    patterns = sum(is_wild(policy.topic) for policy in policies)
    if patterns > PATTERNS_MAX:
        raise PolicyError(
            f"too many policies whose topic has * or ?: {patterns}, but at most {PATTERNS_MAX} are"
            " allowed"
        )
    for number, policy in enumerate(policies, 1):
        for key, text in (("topic", policy.topic), ("channel", policy.channel)):
            if (key == "topic" or text) and not is_valid_pattern(text):
                raise PolicyError(
                    f"policy {number}: invalid {key}: use at most {NAME_SIZE_MAX} characters from"
                    " [.a-zA-Z0-9_-], with * for any text and ? for one character"
                )
        for name, value in policy.settings.items():
            if name not in NAMES or not 0 <= value <= VALUE_MAX:
                raise PolicyError(
                    f"policy {number}: {name} = {value}: unknown setting or invalid value"
                )
            if policy.channel and name in TOPIC_SETTINGS:
                bare = name.removesuffix("_ns")
                raise PolicyError(
                    f"policy {number}: {bare} is a topic setting: remove the channel pattern"
                )


def encode(policies: Iterable[Policy]) -> bytes:
    """The contents of a data path's `policies.json`, for policies set at run time."""
    return stored_json.encode("policies", list(policies))


def decode(text: bytes) -> tuple[Policy, ...]:
    """Read a `policies.json`; raises PolicyError: it is damaged, or of a later format."""
    try:
        found = stored_json.decode("policies", text, tuple[Policy, ...])
    except ValueError as error:
        raise PolicyError(str(error)) from error
    check(found)
    return found
