"""The log keeps the messages between a range reader's last two commits, so they can be reread."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from sparq.protocol.layout import FRAME_RANGE
from tests.broker.harness import BrokerHarness, Client
from tests.broker.ranges import ask


def read_in_parts(harness: BrokerHarness, client: Client, parts: int) -> list[int]:
    """Publish and commit `parts` times on channel c of t; return the first index of each part.

    Each part fills several files.
    """
    attached = ask(client, commands.attach("t", "c"))
    begins = []
    for _ in range(parts):
        begins.append(int(ask(client, commands.ends("t"))["end"]))
        for n in range(12):
            harness.publish("t", b"%d" % n * 300)
        end = int(ask(client, commands.ends("t"))["end"])
        client.say(commands.commit("t", "c", attached["epoch"], end))
        assert client.answers() == [b"OK"]
    harness.pass_time(5.0)
    return begins


def readable(harness: BrokerHarness, first: int) -> bool:
    """Whether t can still be read from this index to its end."""
    client = harness.connect()
    told = ask(client, commands.ends("t"))
    client.say(commands.read("t", told["log"], first, int(told["end"]), 1 << 20))
    ((kind, _),) = client.take_frames()
    return kind == FRAME_RANGE


@pytest.mark.behaviour("diskqueue.TestDiskQueuePeek")
@pytest.mark.parametrize("ends", ["crash", "restart", "checkpoint"])
def test_messages_finished_by_the_last_commit_can_be_read_again(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages finished by the last commit can be read again; earlier ones are deleted.

    Spark repeats a batch if its file in `commits/` is lost.
    """
    if ends == "checkpoint":  # after each write of the ledger
        monkeypatch.setattr("sparq.log.ledger.CHECKPOINT_BYTES", 0)
        monkeypatch.setattr("sparq.log.ledger.CHECKPOINT_RATIO", 0)
    harness = BrokerHarness(max_bytes_per_file=2000)
    begins = read_in_parts(harness, harness.connect(), 3)
    assert harness.channel("t", "c").depth == 0
    assert [readable(harness, first) for first in begins] == [False, False, True]

    for _ in range(2):  # the second start reads what the first one has written
        harness.restart() if ends == "restart" else harness.crash()
        reader = harness.connect()
        attached = ask(reader, commands.attach("t", "c"))
        reader.say(commands.commit("t", "c", attached["epoch"], int(attached["committed"])))
        harness.pass_time(5.0)
        assert harness.channel("t", "c").depth == 0
        assert [readable(harness, first) for first in begins] == [False, False, True]


def test_the_kept_range_is_deleted_after_the_next_commit() -> None:
    """The kept range is deleted after the next commit, even a small one after a restart."""
    harness = BrokerHarness(max_bytes_per_file=2000)
    begin = read_in_parts(harness, harness.connect(), 2)[-1]
    harness.restart()
    reader = harness.connect()
    attached = ask(reader, commands.attach("t", "c"))
    harness.publish("t", b"one more")
    end = int(ask(reader, commands.ends("t"))["end"])
    assert readable(harness, begin)
    reader.say(commands.commit("t", "c", attached["epoch"], end))
    harness.pass_time(5.0)

    assert reader.answers() == [b"OK"]
    assert not readable(harness, begin)
    assert ask(reader, commands.ends("t"))["first_ordinal"] == attached["end_ordinal"]


@pytest.mark.parametrize("crashes", [False, True], ids=["", "and a crash"])
@pytest.mark.parametrize("how", ["streamed", "streamed after a restart", "emptied", "deleted"])
def test_a_channel_without_a_range_reader_keeps_no_range(how: str, crashes: bool) -> None:
    """A channel that is streamed, emptied or deleted keeps no range, also after a crash."""
    harness = BrokerHarness(max_bytes_per_file=2000)
    reader = harness.connect()
    begins = read_in_parts(harness, reader, 2)
    reader.close()
    harness.pass_time(5.0)
    assert readable(harness, begins[1])
    if how.endswith("restart"):
        harness.restart()
    if how.startswith("streamed"):
        harness.consumer("t", "c").close()
    elif how == "emptied":
        harness.broker.empty_channel("t", "c", harness.clock.now())
    else:
        harness.broker.delete_channel("t", "c", harness.clock.now())
        harness.broker.create_channel("t", "c", harness.clock.now())
    harness.turn()
    if crashes:
        harness.crash()
    harness.pass_time(5.0)

    assert not readable(harness, begins[1])


def test_the_lag_limit_includes_the_kept_range() -> None:
    """max_channel_lag_bytes also limits the range that is kept for a range reader."""
    harness = BrokerHarness(max_bytes_per_file=2000, max_channel_lag_bytes=2000)
    begins = read_in_parts(harness, harness.connect(), 2)

    assert not readable(harness, begins[1])
    assert len(harness.broker.topics["t"].stream.log.segments()) <= 2
