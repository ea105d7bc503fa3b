"""cluster.fleet: the nodes of a cluster, listed or configured, also with daemons down."""

from __future__ import annotations

import pytest

from sparq.cluster.fleet import Fleet, Gathered, Node
from sparq.cluster.upstream import Upstream
from tests.cluster.peers import NSQD, answer, listed, peer
from tests.support.servers import NsqdServer, Server, free_port
from tests.support.waiting import until

Servers = tuple[Server, Server]
Nsqds = tuple[NsqdServer, NsqdServer]


def addresses(found: Gathered[list[Node]]) -> list[str]:
    return [node.address for node in found.value]


async def wait_for_nodes(fleet: Fleet, topic: str, count: int) -> None:
    """Wait until `count` nodes are listed with a topic."""

    async def seen() -> bool:
        nodes = (await fleet.nodes()).value
        return count == sum((topic, False) in node.topics for node in nodes)

    await until(seen)


async def test_nodes_are_listed_once(upstream: Upstream, lookupds: Servers, nsqds: Nsqds) -> None:
    """Each node is listed once, with all nsqlookupds that list it."""
    fleet = Fleet(upstream, lookupds=[lookupd.http for lookupd in lookupds])
    found = await fleet.nodes()

    assert sorted(nsqd.http for nsqd in nsqds) == addresses(found)
    assert ({}, False, "") == (found.errors, found.failed, found.text)
    for node in found.value:
        assert node.remote_addresses is not None
        told = [one.partition("/")[0] for one in node.remote_addresses]
        assert [lookupd.http for lookupd in lookupds] == told
        assert ("127.0.0.1", "1.3.0", False) == (
            node.broadcast_address,
            node.version,
            node.out_of_date,
        )


async def test_while_no_nsqlookupd_answers_the_last_nodes_are_returned(
    upstream: Upstream, nsqds: Nsqds
) -> None:
    """While no nsqlookupd answers, the last known nodes are returned, marked as failed."""
    assert nsqds
    async with peer({"/nodes": answer(listed(("127.0.0.1", nsqds[0].http_port)))}) as lookupd:
        fleet = Fleet(upstream, lookupds=[lookupd.address])
        before = await fleet.nodes()
    after = await fleet.nodes()
    nobody = await Fleet(upstream, lookupds=[lookupd.address]).nodes()

    assert [nsqds[0].http] == addresses(before) == addresses(after)
    assert (False, True) == (before.failed, after.failed)
    why = f"failed to query any nsqlookupd: connection refused ({lookupd.address})"
    assert ([], why) == (nobody.value, nobody.failure)


async def test_producers_returns_the_nodes_with_a_topic(
    upstream: Upstream, lookupds: Servers, nsqds: Nsqds
) -> None:
    """``producers`` returns the nodes with a topic; an unknown topic is a failure, as in NSQ."""
    fleet = Fleet(upstream, lookupds=[lookupd.http for lookupd in lookupds])
    nsqds[1].post("/topic/create?topic=who")
    await wait_for_nodes(fleet, "who", 1)
    await until(lambda: _listed_by_both(fleet, "who"))
    unknown = await fleet.producers("nobody")

    assert [nsqds[1].http] == addresses(await fleet.producers("who"))
    assert unknown.failed
    assert unknown.failure.startswith("failed to query any nsqlookupd: got response 404 Not Found")


async def _listed_by_both(fleet: Fleet, topic: str) -> bool:
    found = await fleet.producers(topic)
    return not found.failed and not found.errors


async def test_given_nsqds_are_listed_without_nsqlookupds(upstream: Upstream, nsqds: Nsqds) -> None:
    """Given nsqds are returned in their order, without nsqlookupds; a dead one is an error."""
    nsqds[0].post("/topic/create?topic=given")
    gone = f"127.0.0.1:{free_port()}"
    fleet = Fleet(upstream, nsqds=[nsqds[1].http, gone, nsqds[0].http])
    found = await fleet.nodes()

    assert [nsqds[1].http, nsqds[0].http] == addresses(found)
    assert {gone: "connection refused"} == found.errors
    assert [None, None] == [node.remote_addresses for node in found.value]
    assert ("given", False) in found.value[1].topics
    assert [nsqds[0].http] == addresses(await fleet.producers("given"))
    assert "given" in (await fleet.topics()).value
    assert Gathered({}, {}, "nsqd") == await fleet.without_producers()
    nobody = await Fleet(upstream, nsqds=[gone]).nodes()
    assert f"failed to query any nsqd: connection refused ({gone})" == nobody.failure


async def test_a_node_is_called_where_it_was_configured(upstream: Upstream) -> None:
    """A node is called at its configured address, not at the one that it reports."""
    told = {"broadcast_address": "169.254.169.254", "http_port": 80, "hostname": "h"}
    document = {"/info": answer(told), "/stats": NSQD["/stats"]}
    async with peer(document) as one, peer(document) as two:
        fleet = Fleet(upstream, nsqds=[one.address, f"http://{two.address}"])
        found = await fleet.nodes()
        stats = await fleet.stats(nodes=found.value)

    assert ["169.254.169.254:80", two.address] == addresses(found)
    assert [one.address, f"http://{two.address}"] == [node.at for node in found.value]
    assert {} == stats.errors
    assert (3, 3) == (one.connections, two.connections)


async def test_topics_without_producers_are_listed(
    upstream: Upstream, lookupds: Servers, nsqds: Nsqds
) -> None:
    """Topics without producers are returned with their channels; a tombstoned topic counts."""
    for lookupd in lookupds:
        lookupd.post("/channel/create?topic=idle&channel=c")
    nsqds[0].post("/topic/create?topic=busy")
    fleet = Fleet(upstream, lookupds=[lookupd.http for lookupd in lookupds])
    await wait_for_nodes(fleet, "busy", 1)
    found = await fleet.without_producers()

    assert ["c"] == found.value["idle"]
    assert "busy" not in found.value
    assert ["c"] == (await fleet.channels("idle")).value
    for lookupd in lookupds:
        lookupd.post(f"/topic/tombstone?topic=busy&node={nsqds[0].http}")
    assert [] == (await fleet.without_producers()).value["busy"]


async def test_look_at_replaces_the_nsqlookupds(
    upstream: Upstream, lookupds: Servers, nsqds: Nsqds
) -> None:
    """``set_lookupds`` replaces the nsqlookupds; with an invalid address it changes nothing."""
    fleet = Fleet(upstream, lookupds=[f"127.0.0.1:{free_port()}"])
    assert (await fleet.nodes()).failed
    fleet.set_lookupds([lookupds[0].http])
    with pytest.raises(ValueError, match="not an address"):
        fleet.set_lookupds(["nonsense"])

    assert sorted(nsqd.http for nsqd in nsqds) == addresses(await fleet.nodes())


@pytest.mark.parametrize("document", [[], {}, {"producers": 3}, "text", None, 7])
async def test_a_malformed_answer_of_an_nsqlookupd_is_an_error(
    upstream: Upstream, document: object
) -> None:
    """An answer without a list of producers is an error, not an empty list."""
    async with peer({"/nodes": answer(document)}) as lookupd:
        found = await Fleet(upstream, lookupds=[lookupd.address]).nodes()

    assert {lookupd.address: "answer has no list of producers"} == found.errors


ENTRY = {"broadcast_address": "127.0.0.1", "http_port": 4151, "tcp_port": 4150, "topics": ["t"]}
FAULTY_ENTRIES = {
    "a number": 7,
    "null": None,
    "a list": [],
    "no address": {},
    "a huge port": {**ENTRY, "http_port": 10**400},
    "an infinite port": {**ENTRY, "http_port": 1e400},
    "a text as port": {**ENTRY, "http_port": "4151"},
    "true as port": {**ENTRY, "http_port": True},
    "port 0": {**ENTRY, "http_port": 0},
    "a number as host": {**ENTRY, "broadcast_address": 5},
}
"""What a faulty nsqlookupd, or a node that describes itself, may say about a node."""


@pytest.mark.parametrize("kind", FAULTY_ENTRIES)
@pytest.mark.parametrize("route", ["/nodes", "/lookup", "/info"])
async def test_a_faulty_description_spoils_no_other_node(
    upstream: Upstream, route: str, kind: str
) -> None:
    """An entry without a usable address is left out; a configured node is shown or named."""
    entry = FAULTY_ENTRIES[kind]
    async with peer(NSQD) as one, peer({**NSQD, "/info": answer(entry)}) as two:
        good = listed(("127.0.0.1", one.port))
        found = answer({**good, "producers": [entry, *good["producers"]]})
        async with peer({"/nodes": found, "/lookup": found}) as lookupd:
            if route == "/info":
                nodes = await Fleet(upstream, nsqds=[one.address, two.address]).nodes()
                assert [one.address, two.address] == [*addresses(nodes), *nodes.errors]
                return
            fleet = Fleet(upstream, lookupds=[lookupd.address])
            asked = fleet.nodes() if route == "/nodes" else fleet.producers("t")
            assert [one.address] == addresses(await asked)


@pytest.mark.parametrize(
    "facts",
    [
        {"hostname": 5, "version": ["x"], "topology_zone": None, "tcp_port": 10**400},
        {"hostname": "a\nb", "tcp_port": "x", "topics": "t", "tombstones": 1},
        {"topics": [5, "<script>"], "remote_address": {}, "authenticated": "yes"},
    ],
)
async def test_other_fields_of_a_description_are_left_out(
    upstream: Upstream, facts: dict[str, object]
) -> None:
    """The node is listed without them; texts have one line."""
    async with peer({"/nodes": answer({"producers": [{**ENTRY, **facts}]})}) as lookupd:
        (node,) = (await Fleet(upstream, lookupds=[lookupd.address]).nodes()).value

    assert ("127.0.0.1:4151", (), False) == (node.address, node.topics[1:], node.authenticated)
    assert node.tcp_port in (0, 4150)
    assert node.hostname in ("", "a b")
