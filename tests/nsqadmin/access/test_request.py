"""What access control reads from a request."""

from __future__ import annotations

from sparq.nsqadmin.access import path_of, peer_of, session_of
from tests.nsqadmin.access.options import OUTSIDE, AccessOptions, asks, decide


def test_the_peer_and_the_path() -> None:
    """The path is without query, an IPv6 address without zone, an IPv4-mapped one is IPv4."""

    def shown(peer: str) -> tuple[str, str]:
        request = asks(peer=peer)
        return peer_of(request), decide(AccessOptions(), request).remote

    assert "/topics" == path_of(asks(path="/topics?sort=name"))
    assert (OUTSIDE, f"{OUTSIDE}:9") == shown(f"::ffff:{OUTSIDE}")
    assert ("fe80::1", "[fe80::1]:9") == shown("fe80::1%eth0")
    assert ("", "") == shown("")


def test_a_session_is_found_among_the_cookies_of_the_host() -> None:
    """The session cookie is found even among malformed cookies of other programs."""
    cookies = ('other="a;b; bad[]=\x80', "x=1; nsqadmin_session=abc=; y=2")

    assert "abc=" == session_of(asks(cookie=cookies))
    assert "" == session_of(asks(cookie="nsqadmin_sessions=abc"))
