"""How the messages of a channel are distributed among consumers with different RDY."""

from __future__ import annotations

from tests.broker.harness import BrokerHarness

WINDOWS = (10, 100, 1_000)


def deliveries(messages: int, rounds: int) -> list[int]:
    """How many messages consumers with these RDYs get, of so many published each round.

    All take what they can get before one of them finishes any, and so gets more.
    """
    harness = BrokerHarness()
    consumers = [harness.consumer("t", "c", rdy=window) for window in WINDOWS]
    counts = [0, 0, 0]
    for _ in range(rounds):
        harness.publish("t", *[b"x"] * messages)
        taken = [consumer.messages() for consumer in consumers]
        for at, consumer in enumerate(consumers):
            counts[at] += len(taken[at])
            consumer.finish(taken[at])
    return counts


def test_consumers_below_rdy_get_equal_numbers() -> None:
    """RDY is a limit, not a weight: while no consumer reaches it, all get equal numbers."""
    assert [200, 200, 200] == deliveries(30, 20)


def test_a_backlog_is_shared_in_proportion_to_rdy() -> None:
    """With a backlog, consumers of equal speed get messages in proportion to their RDY."""
    assert [40, 400, 4_000] == deliveries(4_440, 4)
