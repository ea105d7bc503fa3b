"""Publishing clicks: all arrive, and the acknowledged ones are recorded."""

import asyncio
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.client import PublishError
from sparq.pipeline.report.audit import hashes, read_records
from sparq.pipeline.run import publishing
from sparq.pipeline.run.publishing import PublishProgress, batches, publish, read_lines
from tests.client.scripted import scripted
from tests.support.servers import free_port, spawn_nsqd
from tests.support.waiting import wait_for


def test_plain_and_gzipped_logs_give_the_same_lines(tmp_path):
    """LF and CRLF are removed, empty lines are skipped, the last line may lack its end."""
    text = b"one\r\ntwo\n\n\nthree"
    for name, stored in (("plain.log", text), ("packed.bin", gzip.compress(text))):
        (tmp_path / name).write_bytes(stored)
        assert [b"one", b"two", b"three"] == list(read_lines(tmp_path / name))


@given(st.lists(st.integers(1, 700_000), max_size=1_500))
def test_batches_keep_order_and_limits(sizes):
    """Batches keep all bodies in order, within BATCH_COUNT and BATCH_BYTES.

    A body above BATCH_BYTES is a batch by itself.
    """
    whole = bytes(700_000)
    bodies = [memoryview(whole)[:size] for size in sizes]
    made = list(batches(bodies))

    assert bodies == [body for batch in made for body in batch]
    for batch in made:
        assert 1 <= len(batch) <= publishing.BATCH_COUNT
        assert len(batch) == 1 or sum(map(len, batch)) <= publishing.BATCH_BYTES


async def test_messages_of_a_killed_nsqd_are_sent_again(tmp_path):
    """All are recorded as acknowledged; those without an answer are recorded as re-sent, too."""
    bodies = [b"click %d" % number for number in range(40_000)]
    progress = PublishProgress()

    async def kill(nsqd):
        await asyncio.to_thread(wait_for, lambda: progress.acknowledged > 10_000)
        nsqd.kill9()

    with spawn_nsqd(tmp_path, name="a") as one, spawn_nsqd(tmp_path, name="b") as two:
        killing = asyncio.create_task(kill(two))
        done = await publish(bodies, [one.tcp, two.tcp], "clicks", tmp_path, progress)
        await killing
        stored = one.get_json("/stats?format=json&topic=clicks")["topics"][0]["message_count"]

    assert done is progress
    acknowledged, resent = read_records(tmp_path)
    assert sorted(acknowledged.tobytes()) == sorted(hashes(bodies))
    assert (40_000, done.resent) == (done.acknowledged, len(resent))
    assert 0 < stored < 40_000


async def test_a_send_without_an_answer_is_recorded(tmp_path):
    """A send that got no answer is recorded as re-sent: nsqd may have stored it."""
    answers = [None, b"OK"]
    async with scripted() as [nsqd]:
        sent = []

        def answer(peer, _, body):
            sent.append(body)
            if (text := answers[len(sent) - 1]) is None:
                peer.hang_up()
            return text

        nsqd.on_publish = answer
        done = await publish([b"click"], [nsqd.address], "clicks", tmp_path)

    assert (2, PublishProgress(1, 1)) == (len(sent), done)
    assert [hashes([b"click"])] * 2 == [found.tobytes() for found in read_records(tmp_path)]


async def test_without_an_nsqd_publishing_fails(tmp_path, monkeypatch):
    """Without an nsqd, publishing fails after TIMEOUT_SECONDS."""
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.1)
    nowhere = [f"127.0.0.1:{free_port()}"]
    with pytest.raises(PublishError, match="publish timed out"):
        await publish([b"click"], nowhere, "clicks", tmp_path)
