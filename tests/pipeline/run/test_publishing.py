"""Publishing clicks: all arrive, and the acknowledged ones are recorded."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.client import PublishError
from sparq.pipeline.report.audit import hashes, read_hashes
from sparq.pipeline.run import publishing
from sparq.pipeline.run.publishing import batches, publish, read_lines
from tests.client.scripted import Peer, scripted
from tests.support.servers import free_port, spawn_nsqd


def test_plain_and_gzipped_logs_give_the_same_lines(tmp_path: Path) -> None:
    """LF and CRLF are removed, empty lines are skipped, the last line may lack its end."""
    text = b"one\r\ntwo\n\n\nthree"
    (tmp_path / "plain.log").write_bytes(text)
    (tmp_path / "packed.bin").write_bytes(gzip.compress(text))

    assert list(read_lines(tmp_path / "plain.log")) == [b"one", b"two", b"three"]
    assert list(read_lines(tmp_path / "packed.bin")) == [b"one", b"two", b"three"]


def test_a_missing_log_is_named_in_the_error(tmp_path: Path) -> None:
    """A missing log raises FileNotFoundError with its name."""
    with pytest.raises(FileNotFoundError, match=r"nowhere\.log"):
        list(read_lines(tmp_path / "nowhere.log"))


@given(st.lists(st.integers(1, 700_000), max_size=1_500), st.data())
def test_batches_keep_order_and_limits(sizes: list[int], data: st.DataObject) -> None:
    """Batches keep all bodies in order, within BATCH_COUNT and BATCH_BYTES.

    A body above BATCH_BYTES is a batch by itself.
    """
    whole = bytes(700_000)
    bodies = [memoryview(whole)[:size] for size in sizes]

    made = list(batches(bodies))  # type: ignore[arg-type] - views stand in for large bytes

    assert [body for batch in made for body in batch] == bodies
    for batch in made:
        assert 1 <= len(batch) <= publishing.BATCH_COUNT
        assert len(batch) == 1 or sum(map(len, batch)) <= publishing.BATCH_BYTES


async def test_every_message_is_published_and_recorded(tmp_path: Path) -> None:
    """Two nsqds together hold all messages, and the hashes of all are recorded."""
    bodies = [b"click %d" % number for number in range(5_000)]
    acknowledged, resent = tmp_path / "acknowledged", tmp_path / "resent"
    with spawn_nsqd(tmp_path, name="a") as one, spawn_nsqd(tmp_path, name="b") as two:
        seen: list[int] = []
        done = await publish(
            bodies,
            [one.tcp, two.tcp],
            "clicks",
            acknowledged=acknowledged,
            resent=resent,
            on_progress=lambda progress: seen.append(progress.acknowledged),
        )
        counts = [
            server.get_json("/stats?format=json&topic=clicks")["topics"][0]["message_count"]
            for server in (one, two)
        ]

    assert done.acknowledged == sum(counts) == 5_000
    assert min(counts) > 0
    assert seen == sorted(seen)
    assert seen[-1] == 5_000
    assert sorted(acknowledged.read_bytes()) == sorted(hashes(bodies))
    assert len(read_hashes(resent)) == done.resent == 0


async def test_messages_of_a_killed_nsqd_are_sent_again(tmp_path: Path) -> None:
    """Messages that a killed nsqd did not acknowledge are sent again and recorded as re-sent."""
    acknowledged, resent = tmp_path / "acknowledged", tmp_path / "resent"
    with spawn_nsqd(tmp_path, name="a") as one, spawn_nsqd(tmp_path, name="b") as two:
        killed = False

        def kill_once(progress: publishing.PublishProgress) -> None:
            nonlocal killed
            if progress.acknowledged > 10_000 and not killed:
                killed = True
                two.kill9()

        done = await publish(
            (b"click %d" % number for number in range(40_000)),
            [one.tcp, two.tcp],
            "clicks",
            acknowledged=acknowledged,
            resent=resent,
            on_progress=kill_once,
        )
        await asyncio.to_thread(two.start)

    assert killed
    assert done.acknowledged == len(read_hashes(acknowledged)) == 40_000
    assert done.resent == len(read_hashes(resent))


async def test_a_send_without_an_answer_before_a_refusal_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that got no answer is recorded as re-sent, also if nsqd refuses the next one."""
    monkeypatch.setattr(publishing, "RETRY_SECONDS", 0)
    answers = [None, b"E_MPUB_FAILED MPUB failed nsqd is draining", b"OK"]
    async with scripted() as [nsqd]:
        sent: list[bytes] = []

        def answer(peer: Peer, _: list[bytes], body: bytes) -> bytes | None:
            sent.append(body)
            if (text := answers[len(sent) - 1]) is None:
                peer.hang_up()
            return text

        nsqd.on_publish = answer
        done = await publish(
            [b"click"],
            [nsqd.address],
            "clicks",
            acknowledged=tmp_path / "acknowledged",
            resent=tmp_path / "resent",
        )

    assert len(sent) == 3
    assert (done.acknowledged, done.resent) == (1, 1)
    assert (tmp_path / "resent").read_bytes() == hashes([b"click"])


async def test_without_an_nsqd_publishing_fails(tmp_path: Path) -> None:
    """Without an nsqd, publishing fails after timeout_seconds."""
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(PublishError, match="publish timed out"):
        await asyncio.wait_for(
            publish(
                [b"click"],
                [nowhere],
                "clicks",
                acknowledged=tmp_path / "acknowledged",
                resent=tmp_path / "resent",
                timeout_seconds=0.1,
            ),
            60,
        )
