"""State that a broker recovers after kill -9, after a power cut and after a clean stop."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.ledger import Ledger
from sparq.log.records import RecordKind
from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk
from tests.broker.harness import BrokerHarness, Message


def by_body(messages: list[Message]) -> dict[bytes, int]:
    """Return attempts by body."""
    return {message.body: message.attempts for message in messages}


@pytest.mark.behaviour("more.in-flight-survives-restart")
def test_in_flight_messages_return_with_one_more_attempt() -> None:
    """After a crash, messages that were in flight are delivered with attempts + 1."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=3)
    harness.publish("t", b"a", b"b", b"c", b"d", b"e")
    messages = consumer.messages()
    consumer.finish(messages[1:2])
    consumer.say(commands.req(messages[0].id, 0))
    harness.crash()

    found = by_body(harness.consumer("t", "c", rdy=10).messages())

    # "d" and "e" were in flight too: finishing "b" and requeueing "a" had opened the window.
    assert found[b"c"] == 2
    assert found[b"a"] >= 2
    assert b"b" not in found
    assert set(found) == {b"a", b"c", b"d", b"e"}


def test_a_finish_before_an_answer_is_kept() -> None:
    """P3: a FIN that was followed by an answered command survives a crash."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=100)
    harness.publish("t", *[b"%d" % n for n in range(100)])
    messages = consumer.messages()
    consumer.answers()
    consumer.finish(messages[:60:2])
    consumer.say(commands.cls())
    assert consumer.answers() == [b"CLOSE_WAIT"]
    harness.crash()

    found = by_body(harness.consumer("t", "c", rdy=100).messages())

    finished = {message.body for message in messages[:60:2]}
    assert set(found) == {message.body for message in messages} - finished


@pytest.mark.behaviour("more.delay-kept-on-disk")
def test_a_requeue_delay_survives_a_crash() -> None:
    """P4: after a crash, a REQ's delay ends at the same wall time, with attempts 2."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.req(message.id, 10_000))
    harness.advance(4.0)
    harness.clock.mono_ns = 7
    harness.crash()
    consumer = harness.consumer("t", "c", rdy=1)

    harness.pass_time(5.999)
    assert consumer.messages() == []
    harness.pass_time(0.001)

    assert [m.attempts for m in consumer.messages()] == [2]


@pytest.mark.behaviour("more.delay-kept-on-disk")
def test_a_deferred_publish_survives() -> None:
    """P4: DPUB's due time survives a crash; a message that became due meanwhile is delivered."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    harness.publish("t", b"soon", defer_ms=2000)
    harness.publish("t", b"later", defer_ms=9000)
    harness.advance(5.0)
    harness.crash()
    consumer = harness.consumer("t", "c", rdy=10)
    assert by_body(consumer.messages()) == {b"soon": 1}

    harness.pass_time(3.999)
    assert consumer.messages() == []
    harness.pass_time(0.001)

    assert by_body(consumer.messages()) == {b"later": 1}


def test_a_deferred_publish_that_was_finished_stays_finished() -> None:
    """A finished deferred message is not delivered again after a crash.

    This holds even if the wall clock was set back to before its due time.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"x", defer_ms=1000)
    harness.pass_time(1.0)
    consumer.finish(consumer.messages())
    harness.clock.wall_ns -= 3600 * 1_000_000_000
    harness.crash()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.pass_time(7200)

    assert consumer.messages() == []


@pytest.mark.behaviour("more.backlog-to-first-channel")
def test_a_backlog_without_a_channel_survives() -> None:
    """Messages of a topic without channels go to its first channel, also after a restart."""
    harness = BrokerHarness()
    harness.publish("t", b"1", b"2")
    harness.crash()
    harness.publish("t", b"3")
    harness.restart()
    assert harness.topic("t").depth == 3

    assert harness.consumer("t", "first", rdy=10).bodies() == [b"1", b"2", b"3"]
    assert harness.consumer("t", "second", rdy=10).bodies() == []


@pytest.mark.behaviour("TestDeleteLast")
def test_messages_after_the_last_channel_was_deleted_are_kept() -> None:
    """Messages published after the last channel's deletion go to the next one, despite a crash."""
    harness = BrokerHarness()
    harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"seen")
    harness.broker.delete_channel("t", "c", harness.clock.now())
    harness.turn()
    harness.publish("t", b"gathered")
    harness.crash()

    assert harness.topic("t").depth == 1
    assert harness.consumer("t", "d", rdy=10).bodies() == [b"gathered"]


def test_an_emptied_topic_stays_empty() -> None:
    """Messages dropped by emptying a topic do not return after a crash, on any channel."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    harness.publish("t", b"kept")
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.publish("t", b"gone", b"gone too")
    harness.broker.empty_topic("t", harness.clock.now())
    harness.turn()
    harness.publish("t", b"new")
    harness.crash()
    harness.broker.pause_topic("t", False, harness.clock.now())
    harness.turn()

    assert harness.channel("t", "c").depth == 2
    assert harness.consumer("t", "c", rdy=10).bodies() == [b"kept", b"new"]


def test_a_channel_whose_sub_was_answered_survives_a_power_cut() -> None:
    """A channel whose SUB was answered with OK survives a power cut."""
    for seed in range(5):
        harness = BrokerHarness()
        assert harness.consumer("t", "c").answers() == [b"OK"]
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert list(harness.broker.topics["t"].channels) == ["c"]


def test_a_sub_that_creates_a_channel_waits_for_the_sync() -> None:
    """A SUB that creates a channel gets no OK before the sync task has run."""
    harness = BrokerHarness()
    client = harness.connect()
    client.say(commands.sub("t", "c"), turn=False)
    harness.end_turn()
    assert not client.session.take_output()

    harness.turn()

    assert client.answers() == [b"OK"]


@given(seed=st.integers(0, 1000), count=st.integers(1, 30), finished=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_power_cuts_lose_nothing_acknowledged(seed: int, count: int, finished: int) -> None:
    """P2: after a power cut every acknowledged message is finished or delivered again.

    Finishes that were synced are not lost.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=50)
    for n in range(count):
        harness.publish("t", b"%d" % n)
    messages = consumer.messages()
    consumer.finish(messages[:finished])
    harness.pass_time(2.0)
    harness.turn()
    consumer.finish(messages[finished : finished + 2])
    harness.disk = harness.disk.crash(seed)
    harness.crash()

    found = harness.consumer("t", "c", rdy=50).bodies()
    expected = {message.body for message in messages[finished:]}
    doubtful = {message.body for message in messages[finished : finished + 2]}
    assert len(found) == len(set(found))
    assert expected - doubtful <= set(found) <= expected


def test_a_clean_stop_writes_fins_whose_write_failed() -> None:
    """A clean stop writes FINs whose write failed before, if the disk works again."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"x", b"y")
    harness.pass_time(5.0)
    harness.disk.fail(Fault(1, operations=frozenset({"write"})))
    consumer.finish(consumer.messages())
    assert harness.broker.health() != "OK"

    harness.close()
    harness.disk = harness.disk.crash()
    harness.start()

    assert [] == harness.consumer("t", "c", rdy=10).messages()


def test_a_checkpoint_keeps_fins_ahead_of_the_cursor() -> None:
    """The FIN of a due deferred message ahead of the cursor survives a checkpoint and a crash."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", *[b"%d" % n for n in range(9)])
    harness.publish("t", b"deferred", b"later", defer_ms=1000)
    harness.pass_time(1.5)
    finished: list[bytes] = []
    while b"deferred" not in finished:
        (message,) = consumer.messages()
        finished.append(message.body)
        consumer.finish([message])
    topic = harness.broker.topics["t"]
    assert topic.channels["c"].cursor < message.index
    harness.checkpoint("t")
    harness.crash()

    found = by_body(harness.consumer("t", "c", rdy=100).messages())

    assert not set(finished) & set(found)
    assert {b"later", *(b"%d" % n for n in range(9))} == {*finished, *found} - {b"deferred"}


def test_a_checkpoint_after_a_start_keeps_deferred_messages_in_flight() -> None:
    """A deferred message in flight ahead of the cursor survives checkpoints after a start.

    It is redelivered, not treated as finished.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"a", b"b", b"c")
    harness.publish("t", b"deferred", b"later", defer_ms=1000)
    harness.pass_time(1.5)
    consumer.finish(consumer.messages())
    assert [b"deferred"] == consumer.bodies()
    for _ in range(2):
        harness.crash()
        harness.checkpoint("t")

    found = harness.consumer("t", "c", rdy=9).messages()

    assert {b"b", b"c", b"deferred", b"later"} == set(by_body(found))


def test_a_checkpoint_equals_the_ledger_entries_it_replaces() -> None:
    """A checkpoint contains the same state as the ledger entries it replaces."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=40)
    harness.publish("t", *[b"%d" % n for n in range(100)])
    harness.publish("t", b"deferred", defer_ms=60_000)
    messages = consumer.messages()
    consumer.finish(messages[5:30:3])
    for message in messages[::7]:
        consumer.say(commands.req(message.id, 0 if message.index % 2 else 30_000))
    topic = harness.broker.topics["t"]
    harness.end_turn()
    before = topic.state(harness.clock.now())
    harness.checkpoint("t")
    harness.crash()

    after = harness.broker.topics["t"].state(harness.clock.now())
    old, new = before.channels["c"], after.channels["c"]
    assert (new.cursor, new.finished) == (old.cursor, old.finished)
    assert (new.paused, new.start) == (old.paused, old.start)
    assert {i: due for i, (due, _) in new.requeued.items() if due} == {
        i: due for i, (due, _) in old.requeued.items() if due
    }


def test_a_lost_unpause_repeats_no_deferred_message() -> None:
    """If a power cut loses the record of an unpause, no deferred message is delivered twice.

    Later records survive, and the topic's position lies after the messages that its channels
    already got: otherwise they would get the message again as due.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.publish("t", b"due", defer_ms=1000)
    harness.pass_time(2.0)
    writer = harness.broker.topics["t"].writer
    assert writer is not None
    note = writer.ledger.note

    def note_but_pauses(kind: RecordKind, *columns: Any, flag: bool = False) -> None:
        if kind is not RecordKind.PAUSED:  # this record is lost in the power cut
            note(kind, *columns, flag=flag)

    with mock.patch.object(writer.ledger, "note", note_but_pauses):
        harness.broker.pause_topic("t", False, harness.clock.now())
    harness.turn()
    (message,) = consumer.messages()
    consumer.say(commands.req(message.id, 60_000))
    harness.crash()
    again = harness.consumer("t", "c", rdy=10)
    harness.broker.pause_topic("t", False, harness.clock.now())
    harness.turn()

    assert again.messages() == []
    harness.pass_time(61.0)
    assert [found.attempts for found in again.messages()] == [2]


def without(harness: BrokerHarness, message: Message) -> MemoryDisk:
    """Return the disk after a power cut that lost a message and the ledger's records of it."""
    folder = "/data/topics/t-t"
    for disk in map(harness.disk.crash, range(99)):
        lacks = not any(message.body in disk.data(path) for path in disk.paths())
        if lacks and Ledger.read(disk, folder)[0].highest_index < message.index:
            return disk
    raise AssertionError("no power cut takes it")


@pytest.mark.parametrize("paused", [False, True], ids=["flows", "paused"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["records", "checkpoint"])
def test_no_index_is_used_twice_after_all_files_are_deleted(checkpoint: bool, paused: bool) -> None:
    """No index is used twice, even if all log files are deleted and the clock is set back.

    A message was delivered and then lost in a power cut. No ceiling, clock or FIN shows that its
    index was used; only the ledger does.
    """
    harness = BrokerHarness(sync_every=2_500)
    harness.publish("t", b"kept")
    consumer = harness.consumer("t", "c", rdy=1)
    consumer.finish(consumer.messages())
    harness.pass_time(10)  # the message is synced
    harness.publish("t", b"lost")
    (lost,) = consumer.messages()
    harness.disk = without(harness, lost)
    harness.clock.wall_ns -= 10**15
    harness.crash()
    harness.pass_time(2)
    harness.pass_time(2)
    assert not [path for path in harness.disk.paths() if path.endswith(".log")]
    if paused:
        harness.broker.pause_topic("t", True, harness.clock.now())
    if checkpoint:
        harness.checkpoint("t")
    harness.turn()
    for _ in range(2):
        harness.disk = harness.disk.crash()
        harness.crash()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"new")
    if paused:
        assert [] == consumer.messages()
        harness.broker.pause_topic("t", False, harness.clock.now())
        harness.turn()
    (new,) = consumer.messages()

    assert b"new" == new.body
    assert new.index > lost.index
