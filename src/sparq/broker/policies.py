"""Settings of topics and channels by pattern: what holds for each, and what a restart knows of it.

1. A policy has a pattern for topics, perhaps one for channels, and settings. Without a pattern for
   channels it holds for its topics and all their channels; with one for these channels alone, and
   then it has no setting that only topics have.
2. Policies are read from the first to the last, those of the file before those set at run time; of
   several that say something of one setting the last counts. Where none does, the flags count.
3. A pattern is a name in which `*` stands for any text, also none, and `?` for one character.
4. A set of policies is never changed, but replaced as a whole, so that nobody sees half a change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import translate
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from sparq.broker.options import TOPIC_SETTINGS, Settings
from sparq.protocol.dead_letters import is_dead_letter_topic
from sparq.protocol.names import NAME_SIZE_MAX

POLICIES_MAX: Final = 1_000
PATTERNS_MAX: Final = 100
"""So many policies may have a topic with a wildcard: each is compared with each topic's name."""

FORMAT: Final = 1
NAMES: Final = frozenset(field.name for field in fields(Settings))
VALUE_MAX: Final = (1 << 63) - 1
_PATTERN: Final = re.compile(r"[.a-zA-Z0-9_*?-]+(#ephemeral)?")
_WILD: Final = re.compile(r"[*?]")


class PolicyError(ValueError):
    """It is no policy; the text says what is wrong, and names the policy by its place from 1 on."""


class Policy(NamedTuple):
    """One policy.

    Attributes:
        topic: a pattern.
        channel: a pattern; empty: it holds for the topics themselves, and all their channels.
        settings: fields of `Settings` with their values, in the fields' units.
    """

    topic: str
    channel: str
    settings: Mapping[str, int]


class Origin(NamedTuple):
    """A setting that a policy has decided.

    Attributes:
        value: in the unit of the field of `Settings`.
        place: of the policy, from 0, among all of a `Policies`.
    """

    value: int
    place: int


class Change(NamedTuple):
    """What other policies mean for a setting of a topic, or of a channel; None: of the topic."""

    topic: str
    channel: str | None
    setting: str
    before: int
    after: int


class Scope:
    """What holds for one topic and its channels.

    Attributes:
        topic: the topic's settings.
        is_limited: whether publishes have to be looked at for a limit (see `bounds`).
    """

    def __init__(
        self, topic: str, default: Settings, policies: Sequence[tuple[int, Policy]]
    ) -> None:
        """`policies`: those that fit the topic, with their places, in their order."""
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

    def channel(self, name: str) -> Settings:
        """The settings of a channel."""
        return self._settings(self.origins(name)) if self._has_channels else self.topic

    def origins(self, channel: str | None) -> dict[str, Origin]:
        """What policies have decided of the topic, or of one of its channels, by setting."""
        decided: dict[str, Origin] = {}
        for place, policy in self._policies:
            if not policy.channel or (channel is not None and fits(policy.channel, channel)):
                for name, value in policy.settings.items():
                    if channel is None or name not in TOPIC_SETTINGS:
                        decided[name] = Origin(value, place)
        return decided

    def _settings(self, origins: Mapping[str, Origin]) -> Settings:
        if not origins:
            return self._default
        values: dict[str, Any] = {name: found.value for name, found in origins.items()}
        return replace(self._default, **values)


class Policies:
    """All policies of one nsqd.

    Attributes:
        default: what holds where no policy says anything.
        configured: those of the file.
        chosen: those that were set at run time.
    """

    def __init__(
        self, default: Settings, configured: Iterable[Policy] = (), chosen: Iterable[Policy] = ()
    ) -> None:
        self.default = default
        self.configured, self.chosen = tuple(configured), tuple(chosen)
        self.all = self.configured + self.chosen
        self._named: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, re.Pattern[str]]] = []
        for place, policy in enumerate(self.all):
            if _WILD.search(policy.topic):
                self._patterns.append((place, re.compile(translate(policy.topic))))
            else:
                self._named.setdefault(policy.topic, []).append(place)

    def scope(self, topic: str) -> Scope:
        """What holds for the topic of this name."""
        places = [*self._named.get(topic, ())]
        places += (place for place, pattern in self._patterns if pattern.match(topic))
        return Scope(topic, self.default, [(place, self.all[place]) for place in sorted(places)])

    def with_chosen(self, chosen: Iterable[Policy]) -> Policies:
        """The same with others that were set at run time."""
        return Policies(self.default, self.configured, chosen)

    def with_configured(self, configured: Iterable[Policy]) -> Policies:
        """The same with others of the file."""
        return Policies(self.default, configured, self.chosen)


def _without_attempts(policy: Policy) -> Policy:
    """What a policy says of a dead-letter topic: there is none of another one."""
    settings = {name: value for name, value in policy.settings.items() if name != "max_attempts"}
    return policy._replace(settings=settings)


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern fits a name."""
    if _WILD.search(pattern) is None:
        return pattern == name
    return re.match(translate(pattern), name) is not None  # `re` keeps what it has compiled


def changes(
    before: Policies, after: Policies, names: Mapping[str, Iterable[str]]
) -> Iterator[Change]:
    """What the new policies change for the topics and channels that there are.

    Args:
        before: the policies in force.
        after: those to come.
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
    topic: str, channel: str | None, before: Settings, after: Settings
) -> Iterator[Change]:
    if before == after:
        return
    for name in sorted(NAMES):
        old, new = getattr(before, name), getattr(after, name)
        if old != new and (channel is not None or name in TOPIC_SETTINGS):
            yield Change(topic, channel, name, old, new)


def check(policies: Sequence[Policy]) -> None:
    """Refuse what cannot be a set of policies; raises PolicyError."""
    if len(policies) > POLICIES_MAX:
        raise PolicyError(f"there are {len(policies)} policies: at most {POLICIES_MAX} may be")
    patterns = sum(_WILD.search(policy.topic) is not None for policy in policies)
    if patterns > PATTERNS_MAX:
        raise PolicyError(
            f"{patterns} policies have a topic with * or ?: at most {PATTERNS_MAX} may"
        )
    for number, policy in enumerate(policies, 1):
        for key, text in (("topic", policy.topic), ("channel", policy.channel)):
            if (key == "topic" or text) and not _is_pattern(text):
                raise PolicyError(
                    f"policy {number}: {key} is a name of at most {NAME_SIZE_MAX} of"
                    " .a-zA-Z0-9_-, with * for any text and ? for one character"
                )
        for name, value in policy.settings.items():
            if name not in NAMES or not 0 <= value <= VALUE_MAX:
                raise PolicyError(f"policy {number}: {name} = {value} is no setting")
            if policy.channel and name in TOPIC_SETTINGS:
                bare = name.removesuffix("_ns")
                raise PolicyError(
                    f"policy {number}: {bare} is a topic's: leave its channel pattern out"
                )


def _is_pattern(text: str) -> bool:
    return len(text) <= NAME_SIZE_MAX and _PATTERN.fullmatch(text) is not None


def encode(policies: Iterable[Policy]) -> bytes:
    """What a data path's `policies.json` is to hold of policies set at run time.

    Policies may hold back what would be deleted, so a flipped bit must not pass for one: the file
    carries a checksum, XXH3-64 with seed 0 over the JSON text of its policies.
    """
    listed = [
        {"topic": policy.topic, "channel": policy.channel, "settings": dict(policy.settings)}
        for policy in policies
    ]
    document = {"format": FORMAT, "checksum": _checksum(listed), "policies": listed}
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(text: bytes) -> tuple[Policy, ...]:
    """The policies of a `policies.json`; raises PolicyError: damaged, or of a later format."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise PolicyError(f"it has format {document['format']}, this is {FORMAT}")
        listed = document["policies"]
        if document["checksum"] != _checksum(listed):
            raise PolicyError("its checksum does not hold")
        found = tuple(
            Policy(str(one["topic"]), str(one["channel"]), dict(one["settings"])) for one in listed
        )
        check(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PolicyError(str(error)) from error
    return found


def _checksum(listed: Any) -> str:
    return xxh3_64_hexdigest(json.dumps(listed, sort_keys=True, separators=(",", ":")).encode())
