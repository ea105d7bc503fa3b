"""What NSQ's disk queue guarantees, for a topic's log and a channel's cursor."""

from __future__ import annotations

import pytest

from tests.broker.harness import BrokerHarness


@pytest.mark.behaviour("diskqueue.TestDiskQueueEmpty")
def test_a_channel_is_emptied_twice_while_it_is_read() -> None:
    """A channel can be emptied while it is read, twice; its files are deleted, and it works on."""
    harness = BrokerHarness(max_bytes_per_file=2000)
    consumer = harness.consumer("t", "c", rdy=3)
    for _ in range(2):
        for number in range(30):
            harness.publish("t", b"%d" % number * 100)
        assert 3 == len(consumer.messages())
        assert len(harness.broker.topics["t"].stream.log.segments()) > 2
        harness.broker.empty_channel("t", "c", harness.clock.now())
        harness.turn()
        assert 0 == harness.channel("t", "c").depth
        consumer.messages()
        harness.pass_time(5.0)
        assert len(harness.broker.topics["t"].stream.log.segments()) <= 1
    harness.restart()
    harness.publish("t", b"again")

    assert [b"again"] == harness.consumer("t", "c", rdy=3).bodies()


@pytest.mark.behaviour("diskqueue.TestDiskQueueSyncAfterRead")
@pytest.mark.parametrize("seed", range(5))
def test_finished_messages_survive_a_power_cut_after_the_sync_timeout(seed: int) -> None:
    """After the sync timeout, finished messages are not delivered again even after a power cut."""
    harness = BrokerHarness(sync_timeout_ns=1_000_000_000)
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", *[b"%d" % number for number in range(10)])
    consumer.finish(consumer.messages()[:7])
    harness.pass_time(1.0)
    harness.pass_time(0.1)
    harness.disk = harness.disk.crash(seed)
    harness.crash()

    found = harness.consumer("t", "c", rdy=10).bodies()
    assert [b"7", b"8", b"9"] == sorted(found)
