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
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

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


class Policy(NamedTuple):
    """One policy.

    Attributes:
        topic: a name pattern.
        channel: a name pattern; empty: the policy applies to the topics and all their channels.
        settings: fields of `QueueSettings` with their values, in the fields' units.
    """

    topic: str
    channel: str
    settings: Mapping[str, int]


class SettingOrigin(NamedTuple):
    """A setting's value, and the policy that defines it.

    Attributes:
        value: in the unit of the field of `QueueSettings`.
        place: index of the policy (from 0) in `Policies.all`.
    """

    value: int
    place: int


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
        if is_dead_letter_topic(topic):
            default = replace(default, max_attempts=0)
            policies = [(at, _without_attempts(policy)) for at, policy in policies]
        self._default = default
        self._policies = policies
        self._has_channels = any(policy.channel for _, policy in policies)
        self.topic = settings = self._settings(self.origins(None))
        limits = (settings.max_topic_bytes, settings.max_topic_messages)
        rates = (settings.max_publish_rate, settings.max_client_publish_rate)
        self.is_limited = any((*limits, *rates))

    def channel(self, name: str) -> QueueSettings:
        """The settings of a channel."""
        return self._settings(self.origins(name)) if self._has_channels else self.topic

    def origins(self, channel: str | None) -> dict[str, SettingOrigin]:
        """The settings that policies define for the topic or a channel, with their origins."""
        decided: dict[str, SettingOrigin] = {}
        for place, policy in self._policies:
            if not policy.channel or (channel is not None and fits(policy.channel, channel)):
                for name, value in policy.settings.items():
                    if channel is None or name not in TOPIC_SETTINGS:
                        decided[name] = SettingOrigin(value, place)
        return decided

    def _settings(self, origins: Mapping[str, SettingOrigin]) -> QueueSettings:
        if not origins:
            return self._default
        values: dict[str, Any] = {name: found.value for name, found in origins.items()}
        return replace(self._default, **values)


class Policies:
    """All policies of one nsqd.

    Attributes:
        default: the settings where no policy defines any.
        configured: the configuration file's policies.
        chosen: the policies that were set at run time.
    """

    def __init__(
        self,
        default: QueueSettings,
        configured: Iterable[Policy] = (),
        chosen: Iterable[Policy] = (),
    ) -> None:
        self.default = default
        self.configured, self.chosen = tuple(configured), tuple(chosen)
        self.all = self.configured + self.chosen
        self._named: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, str]] = []
        # A policy without a wildcard is found by its name; only the others, at most PATTERNS_MAX,
        # are matched against every topic.
        for place, policy in enumerate(self.all):
            if is_wild(policy.topic):
                self._patterns.append((place, policy.topic))
            else:
                self._named.setdefault(policy.topic, []).append(place)

    def scope(self, topic: str) -> Scope:
        """The settings of the topic of this name."""
        places = [*self._named.get(topic, ())]
        places += (place for place, pattern in self._patterns if fits(pattern, topic))
        return Scope(topic, self.default, [(place, self.all[place]) for place in sorted(places)])

    def with_chosen(self, chosen: Iterable[Policy]) -> Policies:
        """A copy with other run-time policies."""
        return Policies(self.default, self.configured, chosen)

    def with_configured(self, configured: Iterable[Policy]) -> Policies:
        """A copy with other policies from the configuration file."""
        return Policies(self.default, configured, self.chosen)


def _without_attempts(policy: Policy) -> Policy:
    """A copy without `max_attempts`: a dead-letter topic has no dead-letter topic of its own."""
    settings = {name: value for name, value in policy.settings.items() if name != "max_attempts"}
    return policy._replace(settings=settings)


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
        yield from _differences(topic, None, old.topic, new.topic)
        for channel in channels:
            for change in _differences(topic, channel, old.channel(channel), new.channel(channel)):
                if change.setting not in TOPIC_SETTINGS:
                    yield change


def _differences(
    topic: str, channel: str | None, before: QueueSettings, after: QueueSettings
) -> Iterator[PolicyChange]:
    if before == after:
        return
    for name in sorted(NAMES):
        old, new = getattr(before, name), getattr(after, name)
        if old != new and (channel is not None or name in TOPIC_SETTINGS):
            yield PolicyChange(topic, channel, name, old, new)


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
    return stored_json.encode("policies", [policy._asdict() for policy in policies])


def decode(text: bytes) -> tuple[Policy, ...]:
    """Read a `policies.json`; raises PolicyError: it is damaged, or of a later format."""
    try:
        found = tuple(
            Policy(str(one["topic"]), str(one["channel"]), dict(one["settings"]))
            for one in stored_json.decode("policies", text)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(str(error)) from error
    check(found)
    return found
