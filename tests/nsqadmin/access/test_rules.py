"""The identity of a request and its roles, for different options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sparq.daemon.access import tokens
from sparq.daemon.http import HttpError
from sparq.nsqadmin import access as rules
from sparq.nsqadmin.access import (
    LOOPBACK,
    AccessRules,
    AdminAccess,
    Role,
    Sessions,
    client_of,
    path_of,
    peer_of,
    session_of,
)
from sparq.nsqadmin.options import NsqadminOptions
from sparq.program.lifecycle import StartError
from tests.nsqadmin.access.options import (
    NOW,
    OUTSIDE,
    access_with,
    asks,
    asks_for_user,
    decide,
    roles_of,
)


def roles_or_status(options: NsqadminOptions, request: web.Request) -> list[str]:
    """The roles of a request, or the status 401 or 403 if it may not even read."""
    try:
        return roles_of(access_with(options).require(request, Role.READ))
    except HttpError as error:
        return [str(error.status)]


ALL = ["read", "bodies", "operate", "administer", "publish"]
ALICE = {"admin_users": ("alice",)}
SEVERAL = {"admin_users": ("alice", "both"), "roles": ("bob=operate", "both=bodies")}
USER = {"x_forwarded_user": "alice"}
IDENTITIES: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    *(
        ("all roles on this machine: a trial needs no setup", {}, {"peer": peer}, ALL)
        for peer in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "")
    ),
    *(
        ("other machines read", {}, {"peer": peer}, ["read"])
        for peer in (OUTSIDE, "10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1", "odd")
    ),
    ("or have --default-role", {"default_role": "none"}, {"peer": OUTSIDE}, ["403"]),
    ("with --admin-user, this machine reads", ALICE, {}, ["read"]),
    ("with --role, too", {"roles": ("alice=read",)}, {}, ["read"]),
    ("or it has --local-role", {**ALICE, "local_role": "operate"}, {}, ["read", "operate"]),
    ("--admin-user gives administer", SEVERAL, USER, ["read", "operate", "administer"]),
    ("--role gives any role", SEVERAL, {"x_forwarded_user": "bob"}, ["read", "operate"]),
    (
        "both are added",
        SEVERAL,
        {"x_forwarded_user": "both"},
        ["read", "bodies", "operate", "administer"],
    ),
    ("other users have the default", SEVERAL, {"x_forwarded_user": "mallory"}, ["read"]),
    ("names have a case", SEVERAL, {"x_forwarded_user": "Alice"}, ["read"]),
    *(
        ("a header that is repeated, empty or of no proxy is ignored", ALICE, facts, ["read"])
        for facts in (
            {**USER, "peer": OUTSIDE},
            {**USER, "peer": "::ffff:192.0.2.7"},
            {"x_forwarded_user": ("alice", "mallory")},
            {"x_forwarded_user": ("mallory", "alice")},
            {"x_forwarded_user": ("",)},
            {"x_forwarded_user": ("alice" * 100,)},
            {"x_forwarded_user": ("alice,mallory",)},
        )
    ),
]


@pytest.mark.parametrize(("promise", "options", "facts", "expected"), IDENTITIES)
def test_a_request_has_the_roles_of_its_sender(
    promise: str, options: dict[str, Any], facts: dict[str, Any], expected: list[str]
) -> None:
    """The roles of a request follow from its address, its user's header and the options."""
    assert expected == roles_or_status(NsqadminOptions(**options), asks(**facts)), promise


@pytest.mark.parametrize(
    ("trusted", "peer", "expected"),
    [
        ((), "127.0.0.1", True),
        ((), "::1", True),
        (("192.0.2.0/24",), OUTSIDE, True),
        (("192.0.2.0/24",), "127.0.0.1", False),
        (("192.0.2.7",), OUTSIDE, True),
        (("192.0.2.8",), OUTSIDE, False),
        (("none",), "127.0.0.1", False),
        (("0.0.0.0/0",), OUTSIDE, True),
    ],
)
def test_trusted_proxies_are_those_that_the_option_names(
    trusted: tuple[str, ...], peer: str, expected: bool
) -> None:
    """Without --trusted-proxy, only this machine is a trusted proxy."""
    options = NsqadminOptions(admin_users=("alice",), trusted_proxies=trusted)

    found = decide(options, asks_for_user("alice", peer=peer))

    assert (expected, "header" if expected else "nobody", "alice" if expected else "") == (
        *(found.may(Role.ADMINISTER), found.via, found.name),
    )


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", (OUTSIDE,), OUTSIDE),
        ("127.0.0.1", ("10.9.9.9", OUTSIDE), OUTSIDE),
        ("127.0.0.1", ("10.9.9.9", OUTSIDE, "127.0.0.2"), OUTSIDE),
        ("127.0.0.1", (f"{OUTSIDE}:1234",), OUTSIDE),
        ("127.0.0.1", ("[2001:db8::1]:1234",), "2001:db8::1"),
        ("127.0.0.1", ("::ffff:192.0.2.7",), OUTSIDE),
        ("127.0.0.1", ("unknown",), "127.0.0.1"),
        ("127.0.0.1", ("127.0.0.1",), "127.0.0.1"),
        (OUTSIDE, ("127.0.0.1",), OUTSIDE),
        ("", (OUTSIDE,), OUTSIDE),
        ("127.0.0.1", ("127.0.0.3",) * 100 + (OUTSIDE,), OUTSIDE),
    ],
)
def test_earlier_entries_of_x_forwarded_for_are_not_trusted(
    peer: str, forwarded_for: tuple[str, ...], client: str
) -> None:
    """Earlier entries in X-Forwarded-For are not trusted: the client may have written them."""
    given = {"peer": peer, "x_forwarded_for": forwarded_for}
    of_one_line = {"peer": peer, "x_forwarded_for": ", ".join(forwarded_for)}

    assert client == client_of(asks(**given), LOOPBACK)
    assert client == client_of(asks(**of_one_line), LOOPBACK)


@pytest.fixture
def options_and_tokens(tmp_path: Path) -> tuple[NsqadminOptions, dict[str, str]]:
    """Options with a token file, and the tokens in it by name."""
    made = {
        "good": tokens.make("good", "operate"),
        "expired": tokens.make("expired", "administer", "2020-01-01"),
        "reader": tokens.make("reader", "read"),
    }
    path = tmp_path / "tokens"
    path.write_text("\n".join(line for _, line in made.values()))
    return NsqadminOptions(token_file=str(path)), {name: token for name, (token, _) in made.items()}


def signed_in(access: AdminAccess, token: str) -> web.Request:
    """A request of a browser that has signed in with a token."""
    session = access.sessions.start(tokens.digest(token), NOW)
    return asks(cookie=f"nsqadmin_session={session}")


def test_a_token_gives_its_roles_on_any_machine(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """A token gives its roles on any machine; with a token file, local requests only read."""
    options, of = options_and_tokens
    for peer in (OUTSIDE, "127.0.0.1"):
        shows = asks(peer=peer, authorization=f"Bearer {of['good']}")
        assert ["read", "operate"] == roles_or_status(options, shows)
        assert "good" == decide(options, shows).name
    assert ["read"] == roles_or_status(options, asks())


def test_everybody_has_the_default_role(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """The default role is added to the roles by token, session, user's header or --local-role."""
    options, of = options_and_tokens
    chosen = replace(options, default_role="bodies", roles=("bob=operate",), local_role="operate")
    access = access_with(chosen)
    everybody = (
        asks(authorization=f"Bearer {of['good']}"),
        signed_in(access, of["good"]),
        asks_for_user("bob"),
        asks(),
    )
    for request in everybody:
        assert ["read", "bodies", "operate"] == roles_of(access.decide(request)), request.headers
    assert ["read", "bodies"] == roles_of(access.decide(asks(peer=OUTSIDE)))


def test_a_wrong_token_is_always_refused(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """A wrong token gets 401; the user's header, --local-role and the default do not apply."""
    options, of = options_and_tokens
    options = replace(options, local_role="administer", admin_users=("alice",))
    for wrong in (
        ("Bearer x",),
        ("Bearer",),
        ("Bearer ",),
        (f"Bearer {of['good']}x",),
        (f"Bearer {of['good'][:-1]}",),
        (f"Bearer {of['expired']}",),
        (f"Bearer {of['good']}", f"Bearer {of['good']}"),
        (f"Bearer {of['good']}", "Basic eDp5"),
    ):
        assert ["401"] == roles_or_status(options, asks(authorization=wrong)), wrong
        assert ["401"] == roles_or_status(options, asks_for_user("alice", authorization=wrong)), (
            wrong
        )


def test_other_authorization_schemes_are_ignored(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """Basic, and a Bearer without a token file, are ignored: a proxy may send them."""
    options, _ = options_and_tokens
    assert ["read"] == roles_or_status(options, asks(authorization="Basic eDp5"))
    options = NsqadminOptions(admin_users=("alice",))
    shows = asks_for_user("alice", authorization="Bearer the.proxys.own")
    assert ["read", "operate", "administer"] == roles_or_status(options, shows)


def test_anonymous_requests_get_401_and_known_users_403(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """An anonymous request gets 401, a known user 403; without a token file 403, as in NSQ."""
    options, of = options_and_tokens
    nsqs = NsqadminOptions(admin_users=("alice",))
    found = []
    for chosen, request in (
        (options, asks()),
        (options, asks(authorization=f"Bearer {of['reader']}")),
        (nsqs, asks(peer=OUTSIDE)),
    ):
        with pytest.raises(HttpError) as raised:
            access_with(chosen).require(request, Role.OPERATE)
        found.append((raised.value.status, raised.value.code))

    expected = [(401, "UNAUTHORIZED"), (403, "FORBIDDEN"), (403, "FORBIDDEN")]
    assert expected == found


def test_a_session_lasts_as_long_as_its_token(
    options_and_tokens: tuple[NsqadminOptions, dict[str, str]],
) -> None:
    """A session ends when its token expires or is removed from the file."""
    options, of = options_and_tokens
    access = access_with(options)

    assert "good" == access.decide(signed_in(access, of["good"])).name
    assert "nobody" == access.decide(signed_in(access, of["expired"])).via
    assert "nobody" == access.decide(asks(cookie="nsqadmin_session=made-up")).via
    Path(options.token_file).write_text("")
    access.reload(options)
    assert "nobody" == access.decide(signed_in(access, of["good"])).via


GET, PUT = "GET", "PUT"


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        # NSQ's rule: the network alone
        ({}, {}, {GET: 200, PUT: 200}),
        ({"admin_users": ("alice",)}, {}, {GET: 200, PUT: 200}),
        ({}, {"peer": OUTSIDE}, {GET: 403, PUT: 403}),
        ({"allow_config_from_cidr": "192.0.2.0/24"}, {"peer": OUTSIDE}, {GET: 200, PUT: 200}),
        ({}, {"peer": ""}, {GET: 200, PUT: 200}),
        ({}, {"peer": "odd"}, {GET: 400, PUT: 400}),
        # through a proxy: the client's address, and the role
        ({}, {"x_forwarded_user": "alice", "x_forwarded_for": OUTSIDE}, {GET: 403, PUT: 403}),
        ({"admin_users": ("alice",)}, {"x_forwarded_user": "alice"}, {GET: 200, PUT: 200}),
        ({"admin_users": ("alice",)}, {"x_forwarded_user": "bob"}, {GET: 200, PUT: 403}),
        *(
            ({}, {header: ""}, {GET: 200, PUT: 403})
            for header in ("via", "forwarded", "x_real_ip", "x_forwarded_user")
        ),
        # sparq's options: the role, too
        ({"roles": ("bob=read",)}, {}, {GET: 200, PUT: 403}),
        ({"local_role": "operate"}, {}, {GET: 200, PUT: 403}),
        ({"local_role": "administer"}, {}, {GET: 200, PUT: 200}),
        # no network: the role alone
        ({"allow_config_from_cidr": ""}, {"peer": OUTSIDE}, {GET: 200, PUT: 403}),
        ({"allow_config_from_cidr": ""}, {}, {GET: 200, PUT: 200}),
    ],
)
async def test_config_checks_the_network_and_then_the_role(
    options: dict[str, Any], given: dict[str, Any], expected: dict[str, int]
) -> None:
    """/config checks the network, as in NSQ, and sometimes the role, too.

    A PUT needs administer if it comes through a proxy, if sparq's options are used, or if there
    is no network to check.
    """
    access = access_with(NsqadminOptions(**options))
    found = dict.fromkeys((GET, PUT), 200)
    for method in found:
        try:
            access.require_config(asks(method=method, **given))
        except HttpError as error:
            found[method] = error.status

    assert expected == found


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"roles": ("bob",)}, "--role"),
        ({"default_role": "reader"}, "--default-role"),
        ({"local_role": "root"}, "--local-role"),
        ({"trusted_proxies": ("10.0.0.0/33",)}, "--trusted-proxy"),
        ({"allow_config_from_cidr": "here"}, "--allow-config-from-cidr"),
        ({"allowed_hosts": ("http://x",)}, "--allowed-host"),
        ({"token_file": "/nowhere"}, "--token-file"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], flag: str) -> None:
    """An invalid option raises StartError, which names its flag."""
    with pytest.raises(StartError, match=f"^{flag}: "):
        AccessRules(NsqadminOptions(**options))


def test_sessions_expire_and_are_bounded() -> None:
    """Sessions expire after LIFE_SECONDS; beyond SESSIONS_MAX the oldest is dropped."""
    found = Sessions()
    names = [found.start(b"x", NOW) for _ in range(rules.SESSIONS_MAX + 1)]

    assert found.digest(names[0], NOW) is None
    assert b"x" == found.digest(names[1], NOW + rules.LIFE_SECONDS - 1)
    assert found.digest(names[1], NOW + rules.LIFE_SECONDS) is None
    assert found.digest(names[1], NOW) is None
    found.end(names[2])
    assert found.digest(names[2], NOW) is None
    assert len(names) == len(set(names))


def test_the_peer_and_the_path() -> None:
    """The path is without query, an IPv6 address without zone, an IPv4-mapped one is IPv4."""

    def shown(peer: str) -> tuple[str, str]:
        request = asks(peer=peer)
        return peer_of(request), decide(NsqadminOptions(), request).remote

    assert "/topics" == path_of(asks(path="/topics?sort=name"))
    assert (OUTSIDE, f"{OUTSIDE}:9") == shown(f"::ffff:{OUTSIDE}")
    assert ("fe80::1", "[fe80::1]:9") == shown("fe80::1%eth0")
    assert ("", "") == shown("")


def test_a_session_is_found_among_the_cookies_of_the_host() -> None:
    """The session cookie is found even among malformed cookies of other programs."""
    cookies = ('other="a;b; bad[]=\x80', "x=1; nsqadmin_session=abc=; y=2")

    assert "abc=" == session_of(asks(cookie=cookies))
    assert "" == session_of(asks(cookie="nsqadmin_sessions=abc"))
