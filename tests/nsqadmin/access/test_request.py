"""The facts that access control reads from a request."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from sparq.nsqadmin.access import AccessRequest, facts_of


def facts(
    *headers: tuple[str, str],
    path: str = "/topics?sort=name",
    method: str = "GET",
    peer: Any = ("192.0.2.7", 9),
) -> AccessRequest:
    """The facts that are read from a request with these headers."""

    class Transport:
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return peer if name == "peername" else default

    request = make_mocked_request(method, path, CIMultiDict(headers), transport=Transport())
    return facts_of(request, "X-User")


def test_the_peer_and_the_path() -> None:
    """The path is without query, an IPv6 address without zone, an IPv4-mapped one is IPv4."""
    assert ("/topics", "192.0.2.7", 9) == (facts().path, facts().peer, facts().port)
    assert ("fe80::1", 7) == (facts(peer=("fe80::1%eth0", 7)).peer, facts(peer=("::1", 7)).port)
    assert "192.0.2.7" == facts(peer=("::ffff:192.0.2.7", 9, 0, 0)).peer
    assert ("", 0) == (facts(peer="").peer, facts(peer="").port)
    assert [False, True] == [facts(method=method).writes for method in ("HEAD", "POST")]


def test_repeated_headers_are_all_kept() -> None:
    """All values are kept, as a second one may contradict the first; the rules decide."""
    found = facts(
        ("Host", "a"),
        ("host", "b"),
        ("X-User", "ann"),
        ("X-User", "eve"),
        ("X-Forwarded-For", "1.1.1.1, 2.2.2.2"),
        ("X-Forwarded-For", "3.3.3.3"),
        ("Content-Type", "Application/JSON; charset=x"),
        ("X-Forwarded-Proto", "HTTPS"),
    )

    assert (("a", "b"), ("ann", "eve")) == (found.hosts, found.users)
    assert ("1.1.1.1", "2.2.2.2", "3.3.3.3") == found.forwarded_for
    assert ("application/json", "https") == (found.content_type, found.scheme)


@pytest.mark.parametrize(
    ("header", "is_forwarded", "is_browsers"),
    [
        (("Accept", "*/*"), False, False),
        (("Via", "1.1 proxy"), True, False),
        (("X-User", ""), True, False),
        (("X-Real-IP", "1.1.1.1"), True, False),
        (("Origin", "null"), False, True),
        (("Sec-Fetch-Site", "none"), False, True),
        (("User-Agent", "Mozilla/5.0"), False, True),
        (("User-Agent", "curl/8"), False, False),
    ],
)
def test_proxies_and_browsers_are_recognised(
    header: tuple[str, str], is_forwarded: bool, is_browsers: bool
) -> None:
    """Proxies and browsers are recognised by headers that only they send, even empty ones."""
    found = facts(header)

    assert (is_forwarded, is_browsers) == (found.is_forwarded, found.is_browsers)


def test_a_session_is_found_among_the_cookies_of_the_host() -> None:
    """The session cookie is found even among malformed cookies of other programs."""
    cookies = ("Cookie", 'other="a;b; bad[]=\x80'), ("Cookie", "x=1; nsqadmin_session=abc=; y=2")

    assert "abc=" == facts(*cookies).session
    assert "" == facts(("Cookie", "nsqadmin_sessions=abc")).session
