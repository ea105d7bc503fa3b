"""Checks of browser requests: known host names, nsqadmin's own pages, no other sites."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from sparq.nsqadmin.access import AccessRequest, Hosts

READS = AccessRequest(hosts=("localhost:4171",))
WRITES = replace(READS, method="POST", is_browsers=True, content_type="application/json")


def is_served(facts: AccessRequest, *allowed: str, http_address: str = "0.0.0.0:4171") -> bool:
    return Hosts(allowed, http_address).refusal(facts) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:4171",
        "localhost.:80",
        "127.0.0.1:4171",
        "192.0.2.1",
        "[::1]:4171",
        "[2001:db8::1]",
        socket.gethostname(),
    ],
)
def test_own_names_and_ip_addresses_are_allowed_hosts(host: str) -> None:
    """Host may be localhost, this host's name or an IP address: no other site has these."""
    assert is_served(replace(READS, hosts=(host,)))


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("",),
        ("evil.example",),
        ("evil.example:4171",),
        ("localhost.evil.example",),
        ("127.0.0.1.evil.example",),
        ("localhost@evil.example",),
        ("localhost:4171:80",),
        ("localhost/",),
        ("localhost ",),
        ("[::1",),
        ("::1",),
        ("localhost", "evil.example"),
        ("localhost", "localhost"),
    ],
)
def test_foreign_hosts_are_refused_even_for_reading(hosts: tuple[str, ...]) -> None:
    """An attacker's name may resolve to nsqadmin's address (DNS rebinding): it gets 403."""
    found = Hosts((), "0.0.0.0:4171").refusal(replace(READS, hosts=hosts))

    assert found is not None
    assert 403 == found.status


@pytest.mark.parametrize(
    ("allowed", "host", "expected"),
    [
        ("admin.example", "admin.example", True),
        ("admin.example", "ADMIN.example:8080", True),
        ("admin.example", "x.admin.example", False),
        ("admin.example:8080", "admin.example:8080", True),
        ("admin.example:8080", "admin.example:8081", False),
        ("*.example", "admin.example", True),
        ("*.example", "a.b.example", True),
        ("*.example", "example", False),
        ("*.example", "badexample", False),
        ("*", "anything", True),
    ],
)
def test_allowed_host_takes_names_ports_and_patterns(
    allowed: str, host: str, expected: bool
) -> None:
    """`--allowed-host` is a name, with or without a port, or a pattern with a leading `*`."""
    assert expected == is_served(replace(READS, hosts=(host,)), allowed)


@pytest.mark.parametrize("text", ["", "a/b", "http://a", "*a", "a.*", "a:b", "a b"])
def test_a_malformed_allowed_host_is_refused(text: str) -> None:
    """A malformed --allowed-host raises ValueError."""
    with pytest.raises(ValueError, match="not a host name"):
        Hosts([text], "0.0.0.0:4171")


def test_the_name_in_http_address_is_an_allowed_host() -> None:
    """With `--http-address=admin.example:4171`, that name is allowed as Host."""
    asked = replace(READS, hosts=("admin.example:4171",))

    assert is_served(asked, http_address="admin.example:4171")


OWN = [
    {"origins": ("http://localhost:4171",)},
    {"origins": ("HTTP://LOCALHOST:4171",)},
    {"fetch_site": "same-origin"},
    {"fetch_site": "none"},
    {"origins": ("http://localhost",), "hosts": ("localhost",)},
    {"origins": ("http://localhost",), "hosts": ("localhost:80",)},
    {"origins": ("https://localhost",), "hosts": ("localhost:443",)},
    {"origins": ("http://[::1]:4171",), "hosts": ("[::1]:4171",)},
    {"content_type": "text/plain", "is_htmx": True},
    {"content_type": "", "is_htmx": True},
    {"content_type": "application/x-www-form-urlencoded", "is_browsers": False},
]
FOREIGN = [
    {"origins": ("http://evil.example",)},
    {"origins": ("null",)},
    {"origins": ("",)},
    {"origins": ("localhost:4171",)},
    {"origins": ("http://localhost:4172",)},
    {"origins": ("http://localhost",)},
    {"origins": ("http://127.0.0.1:4171",)},
    {"origins": ("https://localhost:4171.evil.example",)},
    {"origins": ("http://localhost:4171@evil.example",)},
    {"origins": ("file://localhost:4171",)},
    {"origins": ("http://localhost:4171", "http://localhost:4171")},
    {"fetch_site": "cross-site"},
    {"fetch_site": "same-site"},
    {"fetch_site": "cross-site", "origins": ("http://localhost:4171",)},
    {"fetch_site": "cross-site", "fetch_mode": "navigate"},
    {"fetch_site": "unheard-of"},
    {"content_type": "text/plain"},
    {"content_type": "application/x-www-form-urlencoded"},
    {"content_type": "multipart/form-data"},
    {"content_type": ""},
]


@pytest.mark.parametrize("facts", OWN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_own_pages_and_programs_may_write(method: str, facts: dict[str, Any]) -> None:
    """Requests as htmx, nsqadmin's scripts and curl send them may write."""
    assert is_served(replace(WRITES, method=method, **facts))


@pytest.mark.parametrize("content_type", ["", "text/plain"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_needs_no_extra_headers(method: str, content_type: str) -> None:
    """GET and HEAD need neither a JSON content type nor the htmx header."""
    assert is_served(replace(WRITES, method=method, content_type=content_type))


@pytest.mark.parametrize("facts", FOREIGN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "WHATEVER"])
def test_pages_of_other_sites_may_not_write(method: str, facts: dict[str, Any]) -> None:
    """Forms and fetches of other origins, including other ports, are refused."""
    assert not is_served(replace(WRITES, method=method, **facts))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"fetch_site": "cross-site", "fetch_mode": "navigate"}, True),
        ({"fetch_site": "cross-site", "fetch_mode": "no-cors"}, False),
        ({"fetch_site": "same-site", "fetch_mode": "cors"}, False),
        ({"origins": ("http://evil.example",)}, False),
        ({"fetch_site": "same-origin", "fetch_mode": "cors"}, True),
    ],
)
def test_other_sites_may_link_but_not_load_data(facts: dict[str, Any], expected: bool) -> None:
    """A link from another site may lead to nsqadmin; a script there may not load data."""
    assert expected == is_served(replace(READS, **facts))


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ("admin.example", "https://admin.example", True),
        ("admin.example", "https://admin.example:8443", False),
        ("admin.example:8443", "https://admin.example:8443", True),
        ("*.example", "https://admin.example", True),
        ("*", "https://evil.example", False),
    ],
)
def test_an_allowed_host_may_be_the_origin(allowed: str, origin: str, expected: bool) -> None:
    """An allowed host may be the Origin if a proxy changes Host; `*` allows no origin."""
    assert expected == is_served(replace(WRITES, origins=(origin,)), allowed)
