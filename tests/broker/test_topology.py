"""Topology-aware consumption: who is nearer is served first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.house import Client, House


def aware(**options: Any) -> House:
    return House(topology_aware=True, topology_region="r", topology_zone="z", **options)


def received(client: Client) -> int:
    return len(client.messages())


@pytest.mark.behaviour("TestSameZoneConsumerV2")
def test_the_zone_first() -> None:
    """21 messages for two clients of the zone and one of another, RDY 10 each: 20 and 1."""
    house = aware()
    far = house.consumer("t", "c", 10, topology_region="r2", topology_zone="z2")
    near = [house.consumer("t", "c", 10, topology_region="r", topology_zone="z") for _ in "ab"]
    for number in range(21):
        house.publish("t", b"%d" % number)

    assert [10, 10] == [received(client) for client in near]
    assert 1 == received(far)
    stats = house.channel("t", "c")
    assert 20 == stats.zone_local_msg_count
    assert 0 == stats.region_local_msg_count
    assert 1 == stats.global_msg_count


def test_then_the_region() -> None:
    """A burst fills the windows of the zone, then those of the region, then the others."""
    house = aware()
    home = house.consumer("u", "c", 2, topology_region="r", topology_zone="z")
    region = house.consumer("u", "c", 2, topology_region="r", topology_zone="z2")
    far = house.consumer("u", "c", 2, topology_region="r2", topology_zone="z2")
    house.publish("u", *(b"%d" % number for number in range(5)))

    assert [2, 2, 1] == [received(client) for client in (home, region, far)]
    stats = house.channel("u", "c")
    counts = stats.zone_local_msg_count, stats.region_local_msg_count, stats.global_msg_count
    assert (2, 2, 1) == counts


def test_an_empty_zone_is_a_zone() -> None:
    """Where neither side names a zone, the client is at home."""
    house = House(topology_aware=True)
    house.consumer("t", "c", 1)
    house.publish("t", b"x")

    assert 1 == house.channel("t", "c").zone_local_msg_count


def test_without_the_experiment_all_are_alike() -> None:
    """Shares are equal and nothing is counted by place."""
    house = House(topology_zone="z")
    near = house.consumer("t", "c", 10, topology_zone="z")
    far = house.consumer("t", "c", 10, topology_zone="z2")
    house.publish("t", *(b"%d" % number for number in range(10)))

    assert [5, 5] == [received(near), received(far)]
    assert 0 == house.channel("t", "c").zone_local_msg_count


def test_without_the_experiment_every_delivery_is_global() -> None:
    """As Go counts: `global_msg_count` is there whether or not consumers are told apart."""
    house = House()
    house.consumer("t", "c", rdy=10)
    house.publish("t", b"1", b"2", b"3")
    stats = house.channel("t", "c")

    assert (stats.zone_local_msg_count, stats.region_local_msg_count) == (0, 0)
    assert stats.global_msg_count == 3
