"""Drains on the disk: read back as written; a damaged file is refused; a disk that fails."""

from __future__ import annotations

import pytest

from sparq.broker import stored_json
from sparq.broker.draining import BY_MAX, NONE, Drain, Draining, decode
from sparq.protocol import commands
from sparq.protocol.errors import DRAINING, TOPIC_DRAINING, RemoteError
from sparq.testing import Fault
from tests.broker.harness import BEGIN_WALL_NS, BrokerHarness, Ticket


def encode(draining: Draining) -> bytes:
    """The contents of `drain.json`."""
    return stored_json.encode("draining", draining)


DRAINS = Draining(Drain(5, "me", True), {"t": Drain(6, "she")})


@pytest.mark.parametrize("draining", [NONE, DRAINS, Draining(None, {"t": Drain(6, "she")})])
def test_drains_are_read_back_as_written(draining: Draining) -> None:
    """Decoding returns the requester, time and topic of each drain, or that there is none."""
    assert draining == decode(encode(draining))


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    """A flipped bit raises ValueError or has no effect."""
    whole = encode(DRAINS)
    for bit in range(8 * len(whole)):
        text = bytearray(whole)
        text[bit // 8] ^= 1 << bit % 8
        try:
            assert DRAINS == decode(bytes(text)), bit
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices"),
        (encode(DRAINS).replace(b'"she"', b'"he"'), "checksum"),
        (encode(NONE).replace(b'"format": 1', b'"format": 2'), "format 2"),
        (encode(Draining(None, {"a b": Drain(1, "")})), "invalid topic name"),
        (encode(Draining(Drain(1, "x" * (BY_MAX + 1)), {})), "length <= 256"),
    ],
    ids=["empty", "a list", "a changed name", "a later format", "an invalid topic", "a long name"],
)
def test_invalid_contents_are_refused_with_a_reason(text: bytes, why: str) -> None:
    """The error gives the reason: damage, a newer format, or an invalid topic name."""
    with pytest.raises(ValueError, match=why):
        decode(text)


def test_a_file_of_an_earlier_version_is_read() -> None:
    """Earlier versions wrote `since_ns` as text."""
    earlier = {"node": {"since_ns": "5", "by": "me", "exit": True}, "topics": {}}
    assert Draining(DRAINS.node, {}) == decode(stored_json.encode("draining", earlier))


def change(harness: BrokerHarness, wanted: Draining) -> RemoteError | None:
    """Change the drains; returns the error, or None."""
    ticket = Ticket()
    harness.broker.drains.change(lambda _now: wanted, ticket)
    harness.turn()
    (answer,) = ticket.answers
    return answer


def test_an_acknowledged_end_of_a_drain_survives_a_power_cut() -> None:
    """Ending a drain survives a power cut once it is answered with OK.

    This holds even if an earlier attempt deleted the file but failed to sync its directory.
    """
    harness = BrokerHarness()
    assert change(harness, Draining(Drain(BEGIN_WALL_NS, "me"), {})) is None
    harness.disk.fail(Fault(1, operations=frozenset(["syncdir"])))
    assert change(harness, NONE) is not None
    assert harness.broker.drains.is_on
    assert change(harness, NONE) is None
    for seed in range(20):
        again = BrokerHarness(harness.disk.crash(seed))
        assert not again.broker.drains.is_on


def test_changes_at_the_same_time_are_applied_one_after_another() -> None:
    """Each change is applied to the result of the one before, and each is answered once."""
    harness = BrokerHarness()
    first, second = Ticket(), Ticket()
    node = Drain(BEGIN_WALL_NS, "me")
    drains = harness.broker.drains
    drains.change(lambda now: Draining(node, now.topics), first)
    drains.change(lambda now: Draining(now.node, {"t": DRAINS.topics["t"]}), second)

    harness.turn()

    assert [None] == first.answers == second.answers
    assert Draining(node, DRAINS.topics) == drains.now
    assert (DRAINING, DRAINING) == (drains.refusal("t"), drains.refusal("u"))
    assert change(harness, Draining(None, DRAINS.topics)) is None
    assert (TOPIC_DRAINING, "") == (drains.refusal("t"), drains.refusal("u"))
    producer = harness.connect()
    producer.say(commands.pub("t", b"x") + commands.pub("u", b"x"))
    assert [f"E_PUB_FAILED PUB failed {TOPIC_DRAINING}".encode(), b"OK"] == producer.answers()
    assert 1 == drains.refused_count
