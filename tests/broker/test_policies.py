"""Policies: precedence, effect at run time, and persistence."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from typing import Any

import pytest

from sparq.broker.catalog import CatalogError
from sparq.broker.options import TOPIC_SETTINGS, QueueSettings
from sparq.broker.policies import (
    FILE,
    NAMES,
    PATTERNS_MAX,
    POLICIES_MAX,
    Policies,
    Policy,
    PolicyChange,
    PolicyError,
    changes,
    check,
    decode,
    encode,
)
from sparq.log.disk import DiskError
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from tests.broker.harness import PATH, BrokerHarness, Ticket

BODY = b"x" * 6_000
FILE_BYTES = 20_000


def policy(topic: str, channel: str = "", **settings: int) -> Policy:
    return Policy(topic, channel, settings)


def choose(harness: BrokerHarness, *chosen: Policy) -> RemoteError | None:
    """Set policies at run time; returns the error, or None if they are in effect."""
    ticket = Ticket()
    harness.broker.choose_policies(chosen, ticket)
    assert [] == ticket.answers
    harness.turn()
    (error,) = ticket.answers
    return error


def why_refused(harness: BrokerHarness, topic: str, body: bytes = BODY) -> str:
    """Publish; returns the error's text, empty if it succeeds."""
    ticket = Ticket()
    harness.broker.publish(topic, BodySlices.of([body]), harness.clock.now(), ticket)
    harness.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text


def test_a_policy_is_of_the_topics_that_its_pattern_fits() -> None:
    """With and without a wildcard (`protocol.names.fits`)."""
    policies = Policies(
        QueueSettings(), (policy("click*", max_channels=1), policy("a", max_channels=2))
    )

    found = [policies.scope(name).topic.max_channels for name in ("clicks", "a", "ab")]
    assert [1, 2, 0] == found


def test_the_last_matching_policy_with_the_setting_wins() -> None:
    """The last matching policy that contains a setting determines it.

    Policies set at run time come after those of the file; flags are the default.
    """
    found = Policies(
        QueueSettings(max_channels=7, retention_bytes=1, max_channel_lag_bytes=5),
        (policy("c*", max_channels=8, retention_bytes=2), policy("*", retention_bytes=3)),
        (policy("clicks", retention_bytes=4),),
    )

    clicks, cats, dogs = (found.scope(name).topic for name in ("clicks", "cats", "dogs"))
    assert (8, 4, 5) == (clicks.max_channels, clicks.retention_bytes, clicks.max_channel_lag_bytes)
    assert (8, 3) == (cats.max_channels, cats.retention_bytes)
    assert (7, 3) == (dogs.max_channels, dogs.retention_bytes)
    assert {"max_channels": 0, "retention_bytes": 2} == found.scope("clicks").origins(None)


def test_a_channel_pattern_limits_a_policy_to_matching_channels() -> None:
    """A policy without a channel pattern applies to all channels of its topics.

    One with a channel pattern applies to the matching channels.
    """
    found = Policies(
        QueueSettings(),
        (policy("t", max_channel_lag_bytes=10, max_topic_bytes=99),),
        (policy("*", "slow*", max_channel_lag_bytes=20),),
    )

    scope = found.scope("t")
    assert (99, 10) == (scope.topic.max_topic_bytes, scope.topic.max_channel_lag_bytes)
    assert 10 == scope.settings("quick").max_channel_lag_bytes
    assert 20 == scope.settings("slow.eu").max_channel_lag_bytes
    assert {"max_channel_lag_bytes": 0} == scope.origins("quick")
    assert {"max_channel_lag_bytes": 1} == scope.origins("slow")
    assert 20 == found.scope("u").settings("slow").max_channel_lag_bytes
    assert 0 == found.scope("u").settings("quick").max_channel_lag_bytes


def test_changes_lists_each_differing_setting_once() -> None:
    """`changes` lists each differing setting of each topic and channel once.

    Topic settings are not listed for channels.
    """
    before = Policies(QueueSettings(), (policy("t", max_channels=1),))
    after = replace(before, configured=(policy("*", max_channels=2, max_channel_consumers=3),))

    found = list(changes(before, after, {"t": ["a", "b"], "u": []}))
    assert [
        PolicyChange("t", None, "max_channels", 1, 2),
        PolicyChange("t", "a", "max_channel_consumers", 0, 3),
        PolicyChange("t", "b", "max_channel_consumers", 0, 3),
        PolicyChange("u", None, "max_channels", 0, 2),
    ] == found
    assert [] == list(changes(after, after, {"t": ["a"]}))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ([policy("", max_channels=1)], "policy 1: invalid topic"),
        ([policy("a", max_channels=1), policy("a b", max_channels=1)], "policy 2: invalid topic"),
        ([policy("a" * 65, max_channels=1)], "policy 1: invalid topic"),
        ([policy("[a]", max_channels=1)], "policy 1: invalid topic"),
        ([policy("a\n", max_channels=1)], "policy 1: invalid topic"),
        ([policy("a", "c c", max_channel_consumers=1)], "policy 1: invalid channel"),
        ([policy("a", "c", retention_time_ns=1)], "policy 1: retention_time is a topic setting"),
        ([policy("a", mem_queue_size=1)], "mem_queue_size = 1: unknown setting"),
        ([policy("a", max_channels=-1)], "max_channels = -1: unknown setting or invalid"),
        ([policy("a", max_channels=1)] * (POLICIES_MAX + 1), "at most 1000 are allowed"),
        ([policy("a*", max_channels=1)] * (PATTERNS_MAX + 1), "at most 100 are allowed"),
    ],
)
def test_the_error_for_an_invalid_policy_has_its_number(bad: list[Policy], text: str) -> None:
    """The error for an invalid policy contains its number."""
    with pytest.raises(PolicyError, match=text):
        check(bad)


def test_the_policies_file_is_read_back_as_written() -> None:
    """The policies file is read back as written; one with a flipped bit is refused."""
    wanted = (policy("a*", retention_time_ns=1 << 62), policy("b", "c#ephemeral"))
    text = encode(wanted)

    assert wanted == decode(text)
    assert () == decode(encode(()))
    quiet = []
    for at in range(len(text)):
        for flip in (1, 4, 32):
            damaged = text[:at] + bytes([text[at] ^ flip]) + text[at + 1 :]
            try:
                found: Any = decode(damaged)
            except PolicyError:
                continue
            if found != wanted:
                quiet.append((at, flip))
    assert [] == quiet
    for other in (b"", b"[]", b"{}", b"[" * 90_000, json.dumps({"format": 2}).encode()):
        with pytest.raises(PolicyError):
            decode(other)


def test_a_limit_set_at_run_time_takes_effect_at_once_and_survives_a_crash() -> None:
    """A limit set at run time takes effect immediately, and also after a crash or a restart.

    It applies only to matching topics. After its removal publishes succeed again.
    """
    harness = BrokerHarness()
    for topic in ("small", "large"):
        harness.publish(topic, *[BODY] * 20)
    assert "" == why_refused(harness, "small")

    assert choose(harness, policy("sm*", max_topic_bytes=70_000)) is None
    refused = "PUB failed the limit of 70000 bytes for topic small is reached"
    assert refused == why_refused(harness, "small")
    assert "" == why_refused(harness, "large")
    assert "" == why_refused(harness, "smaller")
    harness.crash()
    assert refused == why_refused(harness, "small")
    assert "" == why_refused(harness, "large")
    harness.restart()
    assert refused == why_refused(harness, "small")
    assert choose(harness) is None
    assert "" == why_refused(harness, "small")
    harness.crash()
    assert "" == why_refused(harness, "small")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_setting_survives_a_crash(name: str) -> None:
    """Each setting survives a crash, for existing and for new topics.

    Without its policy it is off.
    """
    harness = BrokerHarness()
    harness.publish("t", b"x")
    assert not getattr(harness.broker.topics["t"].settings, name)
    assert choose(harness, policy("*", **{name: 70_000})) is None
    for _ in range(2):
        harness.publish("u", b"x")
        for topic in ("t", "u"):
            assert 70_000 == getattr(harness.broker.topics[topic].settings, name)
        harness.broker.create_channel("t", "c", harness.clock.now())
        channel = harness.broker.topics["t"].channels["c"].settings
        assert (0 if name in TOPIC_SETTINGS else 70_000) == getattr(channel, name)
        harness.crash()
    assert choose(harness) is None
    assert not getattr(harness.broker.topics["t"].settings, name)


def test_a_size_limit_makes_the_next_segments_smaller() -> None:
    """A size limit makes the topic's next segments smaller, also after a restart.

    Finished messages then free space in smaller steps.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=100)
    assert choose(harness, policy("t", max_topic_bytes=400_000)) is None
    log = harness.broker.topics["t"].stream.log
    assert 100_000 == log.options.max_bytes_per_file
    for _ in range(3):
        while not why_refused(harness, "t", BODY * 4):
            pass
        assert len(log.segments()) > 2
        consumer.finish(consumer.messages())
        harness.pass_time(5)
        assert "" == why_refused(harness, "t", BODY * 4)
    harness.crash()
    assert 100_000 == harness.broker.topics["t"].stream.log.options.max_bytes_per_file
    assert choose(harness) is None
    assert 100 << 20 == harness.broker.topics["t"].stream.log.options.max_bytes_per_file


def test_policies_that_cannot_be_saved_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If policies cannot be saved, the request fails and the previous ones stay in effect.

    A later attempt can succeed.
    """
    harness = BrokerHarness()
    assert choose(harness, policy("t", max_channels=1)) is None
    catalog = harness.broker._catalog

    def refuse(_name: str, _text: bytes) -> None:
        raise DiskError("sync", FILE, errno.EIO)

    monkeypatch.setattr(catalog, "save_file", refuse)
    error = choose(harness, policy("t", max_channels=2))
    assert error is not None
    assert "INTERNAL_ERROR" == error.code
    assert 1 == harness.broker.policies.scope("t").topic.max_channels
    monkeypatch.undo()
    assert choose(harness, policy("t", max_channels=3)) is None
    harness.crash()
    assert 3 == harness.broker.policies.scope("t").topic.max_channels


def test_policies_set_at_run_time_override_those_of_the_file() -> None:
    """The file's policies can change at run time and are not saved in the data path.

    Policies set at run time take precedence over them.
    """
    harness = BrokerHarness()
    harness.broker.configure_policies([policy("*", max_channels=5, retention_bytes=6)])
    assert choose(harness, policy("t", max_channels=7)) is None

    held = harness.broker.policies.scope("t").topic
    assert (7, 6) == (held.max_channels, held.retention_bytes)
    harness.crash()
    held = harness.broker.policies.scope("t").topic
    assert (7, 0) == (held.max_channels, held.retention_bytes)


def test_damaged_policies_prevent_the_start() -> None:
    """nsqd does not start with a damaged policies.json; the error explains what to do.

    Without its policies a topic might lose messages that they keep.
    """
    harness = BrokerHarness()
    assert choose(harness, policy("t", retention_bytes=1)) is None
    path = f"{PATH}/{FILE}"
    file = harness.disk.open(path)
    text = file.pread(file.size(), 0)
    harness.disk.unlink(path)
    other = harness.disk.create(path)
    other.append([text.replace(b'"retention_bytes": 1', b'"retention_bytes": 2')], 0)
    other.close()

    with pytest.raises(
        CatalogError, match=r"policies\.json cannot be used: checksum mismatch.* Move"
    ):
        harness.crash()
