"""An nsqd with an IPv6 address is listed with one spelling, whatever its flag has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers import spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for


@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_an_ipv6_broadcast_address_has_one_spelling(tmp_path: Path, address: str) -> None:
    """nsqd and nsqlookupd give it without brackets; a tombstone may name the node either way."""
    flag = f"--broadcast-address={address}"
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, flag, lookupds=(lookupd,)) as nsqd,
    ):
        nsqd.post("/pub?topic=t", b"one")
        nsqd.post("/pub?topic=u", b"one")
        wait_for(lambda: lookupd.request("GET", "/lookup?topic=u")[0] == 200)
        (producer,) = lookupd.get_json("/lookup?topic=t")["producers"]

        assert "::1" == producer["broadcast_address"]
        assert "::1" == nsqd.get_json("/info")["broadcast_address"]
        for topic, node in (("t", f"::1:{nsqd.http_port}"), ("u", f"[::1]:{nsqd.http_port}")):
            lookupd.post(f"/topic/tombstone?topic={topic}&node={node}")
            assert [] == lookupd.get_json(f"/lookup?topic={topic}")["producers"]
