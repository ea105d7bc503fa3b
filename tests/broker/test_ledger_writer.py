"""A topic's ledger: when it is written, synced and replaced by a checkpoint."""

from __future__ import annotations

import errno

import pytest

from sparq.log import ledger as ledger_module
from sparq.testing import Fault
from tests.broker.harness import BrokerHarness


def test_a_ledger_that_cannot_be_synced_refuses_new_channels(harness: BrokerHarness) -> None:
    """A SUB that creates a channel gets E_SUB_FAILED while the ledger cannot be synced."""
    harness.publish("t", b"x")
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"}), times=100))
    client = harness.consumer("t", "c")
    assert client.answers() == [b"E_SUB_FAILED SUB failed input/output error"]
    assert client.session.closing

    harness.disk.fault = None
    for _ in range(100):
        harness.pass_time(2.0)
        harness.publish("t", b"y")
    assert harness.consumer("t", "d").answers() == [b"OK"]
    harness.disk = harness.disk.crash(1)
    harness.crash()

    assert "d" in harness.broker.topics["t"].channels


def test_a_large_ledger_is_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger stays below `CHECKPOINT_BYTES`: checkpoints replace its old entries."""
    monkeypatch.setattr(ledger_module, "CHECKPOINT_BYTES", 1 << 20)
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=2500)
    for _ in range(300):
        harness.publish("t", *[b"x"] * 500)
        messages = consumer.messages()
        consumer.finish(messages[1::2])
        consumer.finish(messages[::2])
    ledger = [path for path in harness.disk.paths() if "/t-t/" in path and ".log" not in path]
    assert sum(len(harness.disk.data(path)) for path in ledger) < 1 << 20
    harness.crash()

    assert harness.channel("t", "c").depth == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_ledger_that_cannot_be_checkpointed_is_still_appended_to(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no new ledger file can be created, the current one is continued and FINs succeed.

    The checkpoint follows once it is possible.
    """
    monkeypatch.setattr(ledger_module, "CHECKPOINT_BYTES", 1 << 18)
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=2500)
    consumer.answers()
    harness.publish("t", b"what makes the log's first file")
    consumer.finish(consumer.messages())
    harness.disk.fail(Fault(1, number, frozenset({"create"}), times=10**6))

    def finish_many(rounds: int) -> None:
        for _ in range(rounds):
            harness.publish("t", *[b"x"] * 500)
            messages = consumer.messages()
            consumer.finish(messages[1::2])
            consumer.finish(messages[::2])
            assert consumer.answers() == []

    def ledger_bytes() -> int:
        ledger = [p for p in harness.disk.paths() if "/t-t/" in p and ".log" not in p]
        return sum(len(harness.disk.data(path)) for path in ledger)

    finish_many(100)
    grown = ledger_bytes()
    assert harness.channel("t", "c").depth == 0
    harness.disk.fault = None
    finish_many(100)
    harness.pass_time(2.0)

    assert ledger_bytes() < grown
    assert harness.broker.health() == "OK"
    harness.crash()
    assert harness.channel("t", "c").depth == 0
