"""cluster.actions: the effects of actions at the daemons."""

from __future__ import annotations

import asyncio

import pytest

from sparq.cluster import actions
from sparq.cluster.actions import IDS_MAX, Report
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.upstream import Upstream
from tests.cluster.peers import answer, peer
from tests.cluster.test_fleet import Nsqds, Servers, wait_for_nodes
from tests.support.servers import free_port


@pytest.fixture
def fleet(upstream: Upstream, lookupds: Servers, nsqds: Nsqds) -> Fleet:
    """The fleet of the nodes that the two nsqlookupds list."""
    assert nsqds
    return Fleet(upstream, lookupds=[lookupd.http for lookupd in lookupds])


async def filled(fleet: Fleet, nsqds: Nsqds, topic: str) -> None:
    """Create a topic with channel `c` and two messages at both nodes."""
    for nsqd in nsqds:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        nsqd.post(f"/mpub?topic={topic}", b"one\ntwo")
    await wait_for_nodes(fleet, topic, 2)


def done(report: Report) -> list[tuple[str, str]]:
    assert (report.failed, report.errors, report.warnings) == ("", [], {})
    return [(one.step, one.address) for one in report.outcomes]


async def test_create_makes_a_topic_and_its_channel(
    fleet: Fleet, nsqds: Nsqds, lookupds: Servers
) -> None:
    """``create`` calls the nsqlookupds, and for the channel also the nodes with the topic."""
    first, second = (lookupd.http for lookupd in lookupds)
    report = await actions.create(fleet, "made", "c")

    at_lookupds = [
        (step, at) for step in ("topic/create", "channel/create") for at in (first, second)
    ]
    assert at_lookupds == done(report)
    assert "done" == report.result
    assert ["c"] == lookupds[1].get_json("/channels?topic=made")["channels"]
    nsqds[0].post("/topic/create?topic=made")
    await wait_for_nodes(fleet, "made", 1)
    assert ("channel/create", nsqds[0].http) in done(await actions.create(fleet, "made", "d"))
    assert nsqds[0].channel("made", "d")


async def test_without_nsqlookupds_the_nodes_create_topic_and_channel(
    upstream: Upstream, nsqds: Nsqds
) -> None:
    """Without nsqlookupds, ``create`` creates topic and channel at all given nsqds."""
    report = await actions.create(Fleet(upstream, nsqds=[n.http for n in nsqds]), "direct", "c")

    assert 4 == len(done(report))
    assert all(nsqd.channel("direct", "c") for nsqd in nsqds)


async def test_pausing_unpausing_and_emptying_take_effect_at_all_nodes(
    fleet: Fleet, nsqds: Nsqds
) -> None:
    """Pausing, unpausing and emptying take effect at both nodes."""
    await filled(fleet, nsqds, "acts")
    done(await actions.pause(fleet, "acts", "c"))
    done(await actions.pause(fleet, "acts"))

    assert [True, True] == [nsqd.channel("acts", "c")["paused"] for nsqd in nsqds]
    done(await actions.unpause(fleet, "acts", "c"))
    assert [False, False] == [nsqd.channel("acts", "c")["paused"] for nsqd in nsqds]
    topics = [nsqd.get_json("/stats?format=json&topic=acts")["topics"][0] for nsqd in nsqds]
    assert [True, True] == [topic["paused"] for topic in topics]
    done(await actions.unpause(fleet, "acts"))
    assert [2, 2] == [nsqd.channel("acts", "c")["depth"] for nsqd in nsqds]
    done(await actions.empty(fleet, "acts", "c"))
    assert [0, 0] == [nsqd.channel("acts", "c")["depth"] for nsqd in nsqds]


async def test_a_channel_and_a_topic_are_deleted(
    fleet: Fleet, nsqds: Nsqds, lookupds: Servers
) -> None:
    """A channel or topic is deleted at the nsqlookupds first, then at the nodes."""
    await filled(fleet, nsqds, "gone")
    steps = done(await actions.delete(fleet, "gone", "c"))

    assert ["channel/delete"] * 4 == [step for step, _ in steps]
    assert [lookupd.http for lookupd in lookupds] == [address for _, address in steps[:2]]
    assert [{}, {}] == [nsqd.channel("gone", "c") for nsqd in nsqds]
    done(await actions.delete(fleet, "gone"))
    assert "gone" not in (await fleet.topics()).value
    for nsqd in nsqds:
        assert nsqd.get_json("/stats?format=json&topic=gone")["topics"] is None


async def test_a_node_that_does_not_say_whether_a_topic_is_back_is_an_error(
    upstream: Upstream,
) -> None:
    """The topic was deleted there, but nobody knows whether it stayed away."""
    stats = {"version": "1.3.0", "topics": [{"topic_name": "t", "depth": 0, "channels": []}]}
    broken = {**stats, "topics": [{"topic_name": "t", "depth": 10**30}]}
    answers = {"/info": answer({}), "/stats": answer(stats), "/topic/delete": answer({})}
    async with peer(answers) as node:
        later = actions.STAY_SECONDS / 2
        loop = asyncio.get_running_loop()
        loop.call_later(later, node.answers.update, {"/stats": answer(broken)})
        report = await actions.delete(Fleet(upstream, nsqds=[node.address]), "t")

    (failed,) = report.errors
    assert (node.address, actions.STAYS_AWAY) == (failed.address, failed.step)
    assert failed.error.startswith("not known whether it is back: unreadable statistics")
    assert "partly" == report.result


async def test_an_action_on_an_unknown_topic_calls_no_daemon(fleet: Fleet) -> None:
    """An action on an unknown topic calls no daemon and fails with NSQ's error text."""
    for act in (actions.pause, actions.empty, actions.delete):
        report = await act(fleet, "nobody_has_it")

        assert [] == report.outcomes
        assert report.failed.startswith("failed to query any nsqlookupd: got response 404")
        assert "failed" == report.result


async def test_a_tombstone_hides_one_node(fleet: Fleet, nsqds: Nsqds, lookupds: Servers) -> None:
    """A tombstone hides a node at the nsqlookupds and deletes its topic; other nodes keep it."""
    await filled(fleet, nsqds, "stone")
    steps = done(await actions.tombstone(fleet, "stone", nsqds[0].http))

    assert ["topic/tombstone", "topic/tombstone", "topic/delete"] == [step for step, _ in steps]
    assert nsqds[0].get_json("/stats?format=json&topic=stone")["topics"] is None
    assert nsqds[1].channel("stone", "c")
    listed = lookupds[0].get_json("/lookup?topic=stone")["producers"]
    assert [nsqds[1].http_port] == [producer["http_port"] for producer in listed]


async def test_a_tombstone_for_an_unknown_node_is_refused(fleet: Fleet) -> None:
    """A tombstone for an unknown node raises UnknownNode and does not call that node."""
    async with peer({}) as stranger:
        with pytest.raises(UnknownNode):
            await actions.tombstone(fleet, "stone", stranger.address)
        assert 0 == stranger.connections


async def test_an_nsqlookupd_that_is_down_is_reported(
    upstream: Upstream, nsqds: Nsqds, lookupds: Servers
) -> None:
    """An nsqlookupd that is down is a warning of the query and an error of the deletion."""
    both = Fleet(upstream, lookupds=[lookupd.http for lookupd in lookupds])
    await filled(both, nsqds, "warned")
    gone = f"127.0.0.1:{free_port()}"
    fleet = Fleet(upstream, lookupds=[lookupds[0].http, gone])
    report = await actions.delete(fleet, "warned", "c")

    assert {gone: "connection refused"} == report.warnings
    assert [gone] == [one.address for one in report.errors]
    assert "partly" == report.result
    assert [{}, {}] == [nsqd.channel("warned", "c") for nsqd in nsqds]


async def test_a_channel_is_moved(fleet: Fleet, nsqds: Nsqds) -> None:
    """``seek`` moves a channel at the given nodes, or at all, and reports their answers."""
    await filled(fleet, nsqds, "moved")
    report = await actions.seek(fleet, "moved", "c", "latest", nodes=[nsqds[0].http])

    assert [("channel/seek", nsqds[0].http)] == done(report)
    assert isinstance(report.outcomes[0].answer, dict)
    assert [0, 2] == [nsqd.channel("moved", "c")["depth"] for nsqd in nsqds]
    assert 2 == len(done(await actions.seek(fleet, "moved", "c", "earliest")))
    assert [2, 2] == [nsqd.channel("moved", "c")["depth"] for nsqd in nsqds]


async def test_actions_on_messages_are_reported_by_node(upstream: Upstream) -> None:
    """Each node gets its message ids in one call, and the report has its answer."""
    id_of = "{:016x}".format
    document = {"done": [id_of(1)], "refused": []}
    answers = {
        "/info": answer({}),
        "/stats": answer({"version": "1.3.0"}),
        "/message/requeue": answer(document),
    }
    async with peer(answers) as one, peer(answers) as two:
        fleet = Fleet(upstream, nsqds=[one.address, two.address])
        ids = {one.address: [id_of(1)], two.address: [id_of(2)]}
        report = await actions.messages(fleet, "requeue", "t", "c", ids)
        with pytest.raises(UnknownNode):
            await actions.messages(fleet, "requeue", "t", "c", {"127.0.0.1:1": [id_of(1)]})
        with pytest.raises(ValueError, match="more than"):
            many = {one.address: [id_of(1)] * (IDS_MAX + 1)}
            await actions.messages(fleet, "requeue", "t", "c", many)

    assert [document, document] == [one.answer for one in report.done]
    assert "POST /message/requeue?topic=t&channel=c" == one.asked[-3]
