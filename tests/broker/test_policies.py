"""Policies: precedence, effect at run time, and persistence."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from sparq.broker.catalog import POLICIES, CatalogError
from sparq.broker.options import QueueSettings
from sparq.broker.policies import (
    NAMES,
    PATTERNS_MAX,
    POLICIES_MAX,
    Origin,
    Policies,
    Policy,
    PolicyChange,
    PolicyError,
    changes,
    check,
    decode,
    encode,
    fits,
)
from sparq.log.disk import DiskError
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from tests.broker.house import PATH, House, Ticket

BODY = b"x" * 6_000
FILE_BYTES = 20_000


def policy(topic: str, channel: str = "", **settings: int) -> Policy:
    return Policy(topic, channel, settings)


def choose(house: House, *chosen: Policy) -> RemoteError | None:
    """Set policies at run time; returns the error, or None if they are in effect."""
    ticket = Ticket()
    house.broker.choose_policies(chosen, ticket)
    assert [] == ticket.answers
    house.turn()
    (error,) = ticket.answers
    return error


def why_refused(house: House, topic: str, body: bytes = BODY) -> str:
    """Publish; returns the error's text, empty if it succeeds."""
    ticket = Ticket()
    house.broker.publish(topic, BodySlices.of([body]), house.clock.now(), ticket)
    house.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("clicks", "clicks", True),
        ("clicks", "clicks2", False),
        ("clicks", "Clicks", False),
        ("click*", "clicks.old", True),
        ("*", "a#ephemeral", True),
        ("*", "", True),
        ("c*s", "clicks", True),
        ("c*s", "clicks.", False),
        ("c?", "cx", True),
        ("c?", "c", False),
        ("a.c", "abc", False),
        ("*#ephemeral", "x#ephemeral", True),
        ("*#ephemeral", "x", False),
    ],
)
def test_patterns(pattern: str, name: str, is_one: bool) -> None:
    """`*` matches any text, `?` one character, everything else itself."""
    assert is_one == fits(pattern, name)
    found = Policies(QueueSettings(), [policy(pattern, max_channels=1)]).scope(name)
    assert int(is_one) == found.topic.max_channels


def test_the_last_policy_that_says_something_counts() -> None:
    """The last matching policy that contains a setting determines it.

    Policies set at run time come after those of the file; flags are the default.
    """
    found = Policies(
        QueueSettings(max_channels=7, retention_bytes=1, max_channel_lag_bytes=5),
        [policy("c*", max_channels=8, retention_bytes=2), policy("*", retention_bytes=3)],
        [policy("clicks", retention_bytes=4)],
    )

    clicks, cats, dogs = (found.scope(name).topic for name in ("clicks", "cats", "dogs"))
    assert (8, 4, 5) == (clicks.max_channels, clicks.retention_bytes, clicks.max_channel_lag_bytes)
    assert (8, 3) == (cats.max_channels, cats.retention_bytes)
    assert (7, 3) == (dogs.max_channels, dogs.retention_bytes)
    origins = {"max_channels": Origin(8, 0), "retention_bytes": Origin(4, 2)}
    assert origins == found.scope("clicks").origins(None)


def test_channels_have_policies_of_their_own() -> None:
    """A policy without a channel pattern applies to all channels of its topics.

    One with a channel pattern applies to the matching channels.
    """
    found = Policies(
        QueueSettings(),
        [policy("t", max_channel_lag_bytes=10, max_topic_bytes=99)],
        [policy("*", "slow*", max_channel_lag_bytes=20)],
    )

    scope = found.scope("t")
    assert (99, 10) == (scope.topic.max_topic_bytes, scope.topic.max_channel_lag_bytes)
    assert 10 == scope.channel("quick").max_channel_lag_bytes
    assert 20 == scope.channel("slow.eu").max_channel_lag_bytes
    assert {"max_channel_lag_bytes": Origin(10, 0)} == scope.origins("quick")
    assert {"max_channel_lag_bytes": Origin(20, 1)} == scope.origins("slow")
    assert 20 == found.scope("u").channel("slow").max_channel_lag_bytes
    assert 0 == found.scope("u").channel("quick").max_channel_lag_bytes


def test_what_a_change_would_mean() -> None:
    """`changes` lists each differing setting of each topic and channel once.

    Topic settings are not listed for channels.
    """
    before = Policies(QueueSettings(), [policy("t", max_channels=1)])
    after = before.with_configured([policy("*", max_channels=2, max_channel_consumers=3)])

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
def test_no_policies(bad: list[Policy], text: str) -> None:
    """The error for an invalid policy contains its number."""
    with pytest.raises(PolicyError, match=text):
        check(bad)


def test_the_file_of_a_data_path() -> None:
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


def test_a_limit_set_at_run_time_holds_at_once_and_after_a_crash() -> None:
    """A limit set at run time takes effect immediately, and also after a crash or a restart.

    It applies only to matching topics. After its removal publishes succeed again.
    """
    house = House()
    for topic in ("small", "large"):
        house.publish(topic, *[BODY] * 20)
    assert "" == why_refused(house, "small")

    assert choose(house, policy("sm*", max_topic_bytes=70_000)) is None
    refused = "PUB failed the limit of 70000 bytes for topic small is reached"
    assert refused == why_refused(house, "small")
    assert "" == why_refused(house, "large")
    assert "" == why_refused(house, "smaller")
    house.crash()
    assert refused == why_refused(house, "small")
    assert "" == why_refused(house, "large")
    house.restart()
    assert refused == why_refused(house, "small")
    assert choose(house) is None
    assert "" == why_refused(house, "small")
    house.crash()
    assert "" == why_refused(house, "small")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_setting_holds_after_a_crash(name: str) -> None:
    """Each setting survives a crash, for existing and for new topics.

    Without its policy it is off.
    """
    house = House()
    house.publish("t", b"x")
    assert not getattr(house.broker.topics["t"].settings, name)
    assert choose(house, policy("*", **{name: 70_000})) is None
    for _ in range(2):
        house.publish("u", b"x")
        for topic in ("t", "u"):
            assert 70_000 == getattr(house.broker.topics[topic].settings, name)
        house.broker.create_channel("t", "c", house.clock.now())
        assert 70_000 == getattr(house.broker.topics["t"].channels["c"].settings, name)
        house.crash()
    assert choose(house) is None
    assert not getattr(house.broker.topics["t"].settings, name)


def test_a_limited_topic_has_small_files() -> None:
    """A size limit makes the topic's next segments smaller, also after a restart.

    Finished messages then free space in smaller steps.
    """
    house = House()
    consumer = house.consumer("t", "c", rdy=100)
    assert choose(house, policy("t", max_topic_bytes=400_000)) is None
    log = house.broker.topics["t"].stream.log
    assert 100_000 == log.options.max_bytes_per_file
    for _ in range(3):
        while not why_refused(house, "t", BODY * 4):
            pass
        assert len(log.segments()) > 2
        consumer.finish(consumer.messages())
        house.pass_time(5)
        assert "" == why_refused(house, "t", BODY * 4)
    house.crash()
    assert 100_000 == house.broker.topics["t"].stream.log.options.max_bytes_per_file
    assert choose(house) is None
    assert 100 << 20 == house.broker.topics["t"].stream.log.options.max_bytes_per_file


def test_retention_of_one_topic() -> None:
    """A retention policy keeps finished segments; its removal deletes them."""
    house = House(max_bytes_per_file=FILE_BYTES)
    assert choose(house, policy("kept", retention_time_ns=3600 * 10**9)) is None
    sizes = {}
    for name in ("kept", "not"):
        consumer = house.consumer(name, "c", rdy=100)
        for _ in range(30):
            house.publish(name, BODY)
        consumer.finish(consumer.messages())
    for _ in range(5):
        house.pass_time(1.1)
    for name in ("kept", "not"):
        sizes[name] = len(house.broker.topics[name].stream.log.segments())
    assert sizes["kept"] > 8
    assert 1 == sizes["not"]
    assert choose(house) is None
    for _ in range(5):
        house.pass_time(1.1)
    assert 1 == len(house.broker.topics["kept"].stream.log.segments())


def test_a_lag_limit_of_one_channel() -> None:
    """Only the matching channel drops messages, even if it was created after the policy."""
    house = House(max_bytes_per_file=FILE_BYTES)
    house.consumer("t", "patient")
    assert choose(house, policy("t", "slow", max_channel_lag_bytes=50_000)) is None
    house.consumer("t", "slow")
    for _ in range(30):
        house.publish("t", BODY)
    for _ in range(3):
        house.pass_time(1.1)

    slow, patient = house.channel("t", "slow"), house.channel("t", "patient")
    assert 0 < slow.voided_count == 30 - slow.depth
    assert (0, 30) == (patient.voided_count, patient.depth)


def test_limits_on_channels_and_consumers() -> None:
    """Limits on channels and consumers apply only to matching topics and channels."""
    house = House()
    house.consumer("t", "a")
    chosen = [policy("t", max_channels=1), policy("*", "a", max_channel_consumers=1)]
    assert choose(house, *chosen) is None

    client = house.connect()
    client.say(commands.sub("t", "b"))
    assert [b"E_SUB_FAILED SUB failed the limit of 1 channels is reached"] == client.answers()
    client = house.connect()
    client.say(commands.sub("t", "a"))
    why = b"E_SUB_FAILED SUB failed consumers for t:a exceeds limit of 1"
    assert [why] == client.answers()
    for _ in range(2):
        client = house.connect()
        client.say(commands.sub("u", "b"))
        assert [b"OK"] == client.answers()


def test_policies_that_cannot_be_written_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If policies cannot be saved, the request fails and the previous ones stay in effect.

    A later attempt can succeed.
    """
    house = House()
    assert choose(house, policy("t", max_channels=1)) is None
    catalog = house.broker._catalog

    def refuse(text: bytes) -> None:
        raise DiskError("sync", POLICIES, errno.EIO)

    monkeypatch.setattr(catalog, "save_policies", refuse)
    error = choose(house, policy("t", max_channels=2))
    assert error is not None
    assert "INTERNAL_ERROR" == error.code
    assert 1 == house.broker.policies.scope("t").topic.max_channels
    monkeypatch.undo()
    assert choose(house, policy("t", max_channels=3)) is None
    house.crash()
    assert 3 == house.broker.policies.scope("t").topic.max_channels


def test_the_files_policies_come_before_those_set_at_run_time() -> None:
    """The file's policies can change at run time and are not saved in the data path.

    Policies set at run time take precedence over them.
    """
    house = House()
    house.broker.configure_policies([policy("*", max_channels=5, retention_bytes=6)])
    assert choose(house, policy("t", max_channels=7)) is None

    held = house.broker.policies.scope("t").topic
    assert (7, 6) == (held.max_channels, held.retention_bytes)
    house.crash()
    held = house.broker.policies.scope("t").topic
    assert (7, 0) == (held.max_channels, held.retention_bytes)


def test_damaged_policies_are_not_passed_over() -> None:
    """nsqd does not start with a damaged policies.json; the error explains what to do.

    Without its policies a topic might lose messages that they keep.
    """
    house = House()
    assert choose(house, policy("t", retention_bytes=1)) is None
    path = f"{PATH}/{POLICIES}"
    file = house.disk.open(path)
    text = file.pread(file.size(), 0)
    house.disk.unlink(path)
    other = house.disk.create(path)
    other.append([text.replace(b'"retention_bytes": 1', b'"retention_bytes": 2')], 0)
    other.close()

    with pytest.raises(
        CatalogError, match=r"policies\.json cannot be used: checksum mismatch.* Move"
    ):
        house.crash()
