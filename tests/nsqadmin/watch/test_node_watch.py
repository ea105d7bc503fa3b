"""Watching single nodes: fake daemons that answer late, never or malformed."""

from __future__ import annotations

import time

from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.watch.figures import channel, stats, topic
from tests.nsqadmin.watch.watching import has_state, running_watch, snapshot_where
from tests.support.servers import free_port


async def test_a_node_that_never_answered_is_shown() -> None:
    """A node that never answered has the given address, the state `gone` and the error."""
    address = f"127.0.0.1:{free_port()}"
    async with running_watch(nsqds=(address,)) as watch:
        snapshot = await snapshot_where(watch, lambda p: p.nodes and p.nodes[0].state == "gone")

    (node,) = snapshot.nodes
    assert (address, None, "connection refused") == (node.address, node.answered_at, node.error)


async def test_a_slow_node_does_not_delay_the_others() -> None:
    """A node that does not answer keeps its last figures and becomes silent."""
    async with FakeNode() as slow, FakeNode() as quick:
        slow.answer = stats(topic("t", channel("c", depth=5)))
        async with running_watch(nsqds=(slow.http, quick.http)) as watch:
            await snapshot_where(watch, lambda p: p.totals.waiting == 5)
            slow.may_answer.clear()
            quick.answer = stats(topic("t", channel("c", depth=1)))
            began = time.monotonic()
            snapshot = await snapshot_where(watch, lambda p: p.totals.waiting == 6)
            assert time.monotonic() - began < 3
            snapshot = await snapshot_where(watch, has_state(slow.http, "silent"))
            assert 6 == snapshot.totals.waiting
            quick.answer = stats(topic("t", channel("c", depth=2)))
            await snapshot_where(watch, lambda p: p.totals.waiting == 7)
            slow.may_answer.set()
            await snapshot_where(watch, has_state(slow.http, "up"))


async def test_a_hanging_node_is_gone_after_the_timeout() -> None:
    """A node that does not answer within the request timeout is gone."""
    async with FakeNode() as slow:
        async with running_watch(nsqds=(slow.http,), request=0.5) as watch:
            await snapshot_where(watch, lambda p: p.nodes and p.nodes[0].state == "up")
            slow.may_answer.clear()
            snapshot = await snapshot_where(watch, lambda p: p.nodes[0].state == "gone")
            assert "no answer in time" == snapshot.nodes[0].error
        slow.may_answer.set()


async def test_a_malformed_answer_is_an_error_of_its_node() -> None:
    """A node with a malformed answer is silent, with the error, and keeps its last figures."""
    async with FakeNode() as fake, running_watch(nsqds=(fake.http,)) as watch:
        fake.answer = stats(topic("t", depth=5))
        await snapshot_where(watch, lambda p: p.totals.waiting == 5)
        fake.answer = b"<html>"
        snapshot = await snapshot_where(watch, lambda p: p.nodes[0].state == "silent")

    assert "unreadable statistics" in snapshot.nodes[0].error
    assert 5 == snapshot.totals.waiting
