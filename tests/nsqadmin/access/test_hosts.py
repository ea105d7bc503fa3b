"""Checks of browser requests: known host names, nsqadmin's own pages, no other sites."""

import socket
from typing import Any

import pytest

from sparq.nsqadmin.access import Hosts
from tests.nsqadmin.access.options import asks

READS: dict[str, Any] = {"host": "localhost:4171"}
WRITES = {
    **READS,
    "method": "POST",
    "user_agent": "Mozilla/5.0",
    "content_type": "application/json",
}


def is_served(
    given: dict[str, Any], *allowed: str, http_address: str = "0.0.0.0:4171", **more: Any
) -> bool:
    """Whether a request with these headers is served."""
    return Hosts(allowed, http_address).refusal(asks(**{**given, **more})) is None


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
    assert is_served(READS, host=host)


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
    found = Hosts((), "0.0.0.0:4171").refusal(asks(host=hosts))

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
    assert expected == is_served(READS, allowed, host=host)


@pytest.mark.parametrize("text", ["", "a/b", "http://a", "*a", "a.*", "a:b", "a b"])
def test_a_malformed_allowed_host_is_refused(text: str) -> None:
    """A malformed --allowed-host raises ValueError."""
    with pytest.raises(ValueError, match="not a host name"):
        Hosts([text], "0.0.0.0:4171")


def test_the_name_in_http_address_is_an_allowed_host() -> None:
    """With `--http-address=admin.example:4171`, that name is allowed as Host."""
    name = "admin.example:4171"

    assert is_served(READS, host=name, http_address=name)


OWN = [
    {"origin": ("http://localhost:4171",)},
    {"origin": ("HTTP://LOCALHOST:4171",)},
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "none"},
    {"origin": ("http://localhost",), "host": ("localhost",)},
    {"origin": ("http://localhost",), "host": ("localhost:80",)},
    {"origin": ("https://localhost",), "host": ("localhost:443",)},
    {"origin": ("http://[::1]:4171",), "host": ("[::1]:4171",)},
    {"content_type": "text/plain", "hx_request": "true"},
    {"content_type": "", "hx_request": "true"},
    {"content_type": "application/x-www-form-urlencoded", "user_agent": "curl/8"},
]
FOREIGN = [
    {"origin": ("http://evil.example",)},
    {"origin": ("null",)},
    {"origin": ("",)},
    {"origin": ("localhost:4171",)},
    {"origin": ("http://localhost:4172",)},
    {"origin": ("http://localhost",)},
    {"origin": ("http://127.0.0.1:4171",)},
    {"origin": ("https://localhost:4171.evil.example",)},
    {"origin": ("http://localhost:4171@evil.example",)},
    {"origin": ("file://localhost:4171",)},
    {"origin": ("http://localhost:4171", "http://localhost:4171")},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "origin": ("http://localhost:4171",)},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
    {"sec_fetch_site": "unheard-of"},
    {"content_type": "text/plain"},
    {"content_type": "application/x-www-form-urlencoded"},
    {"content_type": "multipart/form-data"},
    {"content_type": ""},
]


@pytest.mark.parametrize("facts", OWN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_own_pages_and_programs_may_write(method: str, facts: dict[str, Any]) -> None:
    """Requests as htmx, nsqadmin's scripts and curl send them may write."""
    assert is_served(WRITES, method=method, **facts)


@pytest.mark.parametrize(
    "header",
    [{"origin": "http://localhost:4171"}, {"sec_fetch_site": "none"}, {"cookie": ""}],
)
def test_a_browser_is_known_by_its_headers(header: dict[str, Any]) -> None:
    """A browser is recognised by any header that only browsers send, whatever its User-Agent."""
    sent = {**WRITES, "user_agent": "curl/8", "content_type": "text/plain"}

    assert (True, False) == (is_served(sent), is_served(sent, **header))
    assert is_served(sent, **header, content_type="Application/JSON; charset=x")


@pytest.mark.parametrize("content_type", ["", "text/plain"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_needs_no_extra_headers(method: str, content_type: str) -> None:
    """GET and HEAD need neither a JSON content type nor the htmx header."""
    assert is_served(WRITES, method=method, content_type=content_type)


@pytest.mark.parametrize("facts", FOREIGN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "WHATEVER"])
def test_pages_of_other_sites_may_not_write(method: str, facts: dict[str, Any]) -> None:
    """Forms and fetches of other origins, including other ports, are refused."""
    assert not is_served(WRITES, method=method, **facts)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, True),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, False),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, False),
        ({"origin": ("http://evil.example",)}, False),
        ({"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}, True),
    ],
)
def test_other_sites_may_link_but_not_load_data(facts: dict[str, Any], expected: bool) -> None:
    """A link from another site may lead to nsqadmin; a script there may not load data."""
    assert expected == is_served(READS, **facts)


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
    assert expected == is_served(WRITES, allowed, origin=origin)
