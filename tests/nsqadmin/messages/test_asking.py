"""Queries to the nodes of a topic: unknown topics, Go's nsqds, and failing nodes."""

from __future__ import annotations

import pytest

from sparq.cluster.fleet import Fleet
from sparq.daemon.http import HttpError
from sparq.nsqadmin.messages import (
    peek,
    places_in,
    seek_preview,
)
from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.messages.conftest import Cluster
from tests.nsqadmin.nsqds import fill


async def test_go_nodes_are_listed_as_unable(cluster: Cluster) -> None:
    """Go's nsqds are listed in `unable`; if all nodes are Go's, the query is refused with 501."""
    await fill(cluster, 4)
    async with FakeNode() as go:
        go.missing = {"/channel/messages", "/channel/seek"}
        go.answer = {"version": "1.3.0", "health": "OK", "topics": [{"topic_name": "t"}]}
        both = Fleet(cluster.fleet.upstream, nsqds=[*cluster.fleet.nsqds, go.http])
        page = await peek(both, "t", "c")
        assert (4, [go.http], None) == (len(page.messages), page.unable, page.next)
        preview = await seek_preview(both, "t", "c", "earliest")
        assert (4, [go.http]) == (preview.waiting, preview.unable)
        assert not [each for each in go.requests if "seek" in each]
        alone = Fleet(cluster.fleet.upstream, nsqds=[go.http])
        with pytest.raises(HttpError, match="NOT_SUPPORTED") as caught:
            await peek(alone, "t", "c")
        assert caught.value.status == 501


async def test_a_failed_node_does_not_hide_the_others(cluster: Cluster) -> None:
    """A failed node does not hide the others; the next page asks it again."""
    await fill(cluster, 4)
    async with FakeNode() as hung:
        hung.answer = {"version": "1.3.0", "health": "OK", "topics": [{"topic_name": "t"}]}
        fleet = Fleet(cluster.fleet.upstream, nsqds=[*cluster.fleet.nsqds, hung.http])
        hung.broken = {"/channel/messages"}
        page = await peek(fleet, "t", "c")
        assert (4, [hung.http]) == (len(page.messages), [*page.errors])
        assert page.next is not None
        assert {hung.http} == {n for n, p in places_in(page.next).items() if not p.is_done}
