"""cluster.address_rule: hostile registrations are reported and their addresses never called."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import AddressRule, Upstream, UpstreamError
from sparq.protocol.address import parse_ip
from tests.cluster.peers import NSQD, answer, listed, peer

REMOTE = ["lookup.example:4161", "192.0.2.1:4161"]
HOSTILE = [
    ("169.254.169.254", 80),
    ("169.254.169.254", 4151),
    ("::ffff:169.254.169.254", 80),
    ("fe80::1", 4151),
    ("0.0.0.0", 4151),
    ("::", 4151),
    ("224.0.0.1", 4151),
    ("ff02::1", 4151),
    ("2852039166", 80),
    ("0xa9fea9fe", 80),
    ("0xa9.0xfe.0xa9.0xfe", 80),
    ("169.254.43518", 80),
    ("", 4151),
    ("h/../admin", 4151),
    ("user@h", 4151),
    ("h?x=", 4151),
    ("h#", 4151),
    ("h\r\nHost: other", 4151),
    ("h h", 4151),
    ("[::1", 4151),
    ("a" * 300, 4151),
    ("h", 22),
    ("10.0.0.1", 25),
    ("10.0.0.1", 0),
]
LOCAL = [("127.0.0.1", 4151), ("127.8.8.8", 4151), ("::1", 4151), ("localhost", 4151)]
ALLOWED = [
    ("10.0.0.7", 4151),
    ("nsqd-1.example", 4151),
    ("2001:db8::7", 4151),
    ("h", 80),
    ("h_1", 443),
]


@pytest.mark.parametrize("given", [REMOTE, ["127.0.0.1:4161"]])
@pytest.mark.parametrize(("host", "port"), HOSTILE)
def test_hostile_addresses_and_ports_are_refused(given: list[str], host: str, port: int) -> None:
    """Hostile addresses and ports are refused, for remote and for local nsqlookupds."""
    assert AddressRule(given).refusal(host, port)


@pytest.mark.parametrize(("host", "port"), LOCAL)
def test_loopback_from_a_remote_nsqlookupd_is_refused(host: str, port: int) -> None:
    """Loopback from a remote nsqlookupd is refused: it would lead to this machine, not that one."""
    assert AddressRule(REMOTE).refusal(host, port)
    for here in ("127.0.0.1:4161", "http://localhost:4161", f"{socket.gethostname()}:4161"):
        assert "" == AddressRule([here]).refusal(host, port)


@pytest.mark.parametrize(("host", "port"), ALLOWED)
def test_ordinary_addresses_are_allowed(host: str, port: int) -> None:
    """Ordinary addresses and names are allowed."""
    assert "" == AddressRule(REMOTE).refusal(host, port)


def test_a_list_of_addresses_replaces_the_rule() -> None:
    """A list of addresses replaces the rule: only listed hosts are allowed, on any port."""
    reach = AddressRule(REMOTE, ["10.1.0.0/16", "127.0.0.1", "*.nsq.example", "one.example"])

    for host in ("10.1.2.3", "127.0.0.1", "a.nsq.example", "A.NSQ.example.", "one.example"):
        assert "" == reach.refusal(host, 22), host
    for host in ("10.2.0.1", "::1", "192.0.2.1", "169.254.169.254"):
        assert reach.refusal(host, 4151), host
    assert "" == AddressRule(REMOTE, ["one.example"]).refusal("one.example", 4151)
    assert AddressRule(REMOTE, ["one.example"]).refusal("two.example", 4151)
    assert AddressRule(REMOTE, ["*.example"]).refusal("badexample", 4151)


def test_a_name_outside_the_allowed_networks_is_refused() -> None:
    """A list of networks allows a name only if it resolves to an address in one of them."""
    reach = AddressRule(REMOTE, ["10.0.0.0/8"])

    assert "" == reach.refusal("nsqd.example", 4151)  # not resolved yet
    assert "" == reach.refusal_of("nsqd.example", parse_ip("10.0.0.1"))
    assert reach.refusal_of("nsqd.example", parse_ip("169.254.169.254"))


@pytest.mark.parametrize("text", ["", "a b", "10.0.0.0/99", "*.", "http://h", "a/b"])
def test_an_invalid_list_entry_is_refused(text: str) -> None:
    """A list entry that is no address, network or name raises ValueError."""
    with pytest.raises(ValueError, match="is not an IP address"):
        AddressRule(REMOTE, [text])


async def test_hostile_registrations_are_reported_and_not_called() -> None:
    """Hostile nodes that an nsqlookupd lists are reported and not called; the good one is (W-6)."""
    async with peer(NSQD) as good:
        registered = listed(*HOSTILE, ("127.0.0.1", good.port))
        answers = {"/nodes": answer(registered), "/lookup": answer(registered)}
        async with peer(answers) as lookupd, Upstream(request_seconds=2.0) as upstream:
            fleet = Fleet(upstream, lookupds=[lookupd.address])
            found = await fleet.nodes()
            producers = await fleet.producers("t")
            stats = await fleet.stats()
            for host, port in HOSTILE:
                with pytest.raises((UpstreamError, ValueError)):
                    await upstream.get(f"{host}:{port}", "/stats")

    assert [good.address] == [node.address for node in found.value]
    assert [good.address] == [node.address for node in producers.value]
    assert [good.address] == [*stats.value]
    assert any(key.startswith("169.254.169.254:") for key in found.errors)
    assert all("not called" in why for why in found.errors.values())
    assert 4 == upstream.calls  # /nodes, /lookup, /nodes, /stats


async def test_a_name_that_resolves_to_a_hostile_address_is_not_called(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is checked by the addresses it resolves to at each call: these may change."""
    loop = asyncio.get_running_loop()
    places = {"evil.example": "169.254.169.254", "here.example": "127.0.0.1"}

    async def resolved(host: str, port: int, **_: object) -> object:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (places[host], port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolved)
    async with peer({"/stats": answer({"topics": []})}) as trap:
        upstream.reach = AddressRule(REMOTE)
        upstream.set_listed(
            dict.fromkeys((f"evil.example:{trap.port}", f"here.example:{trap.port}"), False)
        )
        for name in places:
            with pytest.raises(UpstreamError, match="none of the name's addresses is allowed"):
                await upstream.get(f"{name}:{trap.port}", "/stats")
        assert 0 == trap.connections
        upstream.set_configured([f"here.example:{trap.port}"])
        assert {"topics": []} == await upstream.get(f"here.example:{trap.port}", "/stats")
