"""Publishing clicks: all arrive, and the acknowledged ones are recorded."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.client import PublishError
from sparq.pipeline.report.audit import hashes, read_records
from sparq.pipeline.run import publishing
from sparq.pipeline.run.publishing import PublishProgress, batches, publish, read_lines
from tests.client.scripted import scripted
from tests.support.servers import free_port


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
        progress = PublishProgress()
        done = await publish([b"click"], [nsqd.address], "clicks", tmp_path, progress)

    assert done is progress
    assert (2, PublishProgress(1, 1)) == (len(sent), done)
    assert [hashes([b"click"])] * 2 == [found.tobytes() for found in read_records(tmp_path)]


async def test_without_an_nsqd_publishing_fails(tmp_path, monkeypatch):
    """Without an nsqd, publishing fails after TIMEOUT_SECONDS."""
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.1)
    nowhere = [f"127.0.0.1:{free_port()}"]
    with pytest.raises(PublishError, match="publish timed out"):
        await publish([b"click"], nowhere, "clicks", tmp_path)
