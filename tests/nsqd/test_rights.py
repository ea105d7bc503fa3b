"""nsqd's table of rights: roles for routes and commands, and permissions for AUTH."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparq.daemon.access import rights, tokens
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.rights import COMMANDS, RIGHTS, access_of, permissions
from sparq.program.lifecycle import StartError
from sparq.protocol import commands
from tests.support.options import changed


def allowed(granted: str, **arguments: str) -> set[str]:
    """The routes that grants allow, for a request with these arguments."""
    held = rights.parse(granted)
    return {
        f"{method} {path}"
        for (method, path), needs in RIGHTS.items()
        if all(need.is_met(held, lambda name: arguments.get(name, "")) for need in needs)
    }


def test_publish_and_consume_allow_their_routes() -> None:
    """Over HTTP, `publish` allows to publish; `consume` allows the same as `bodies`."""
    find = {"GET /ping", "GET /live", "GET /info"}

    assert {*find, "POST /pub", "POST /mpub"} == allowed("publish:t*", topic="t1")
    assert find == allowed("publish:t*", topic="u")
    assert allowed("bodies", topic="t") == allowed("consume", topic="t")
    assert {"GET /ping", "GET /live"} == allowed("none")


def test_each_stronger_role_allows_more() -> None:
    """`read` < `operate` < `administer`, which does not allow reading bodies or publishing."""
    read, operate, administer = (allowed(role, topic="t", to="u") for role in INCLUDED)

    assert read < operate < administer
    assert {"POST /channel/pause", "POST /topic/drain", "POST /message/redrive"} <= operate - read
    assert "POST /client/close" in operate - read
    assert "POST /client/close" not in allowed("operate:t*", topic="t")
    assert {"POST /topic/delete", "PUT /policies", "POST /drain"} <= administer - operate
    assert {"GET /topic/messages", "POST /pub"}.isdisjoint(administer)


INCLUDED = ("read", "operate", "administer")


def test_a_copy_needs_what_it_does_in_both_topics() -> None:
    """A copy shows bodies of one topic, and publishes to the other: it needs both roles."""
    granted = "bodies:mine*,publish:mine*"

    assert "POST /message/copy" in allowed(granted, topic="mine1", to="mine2")
    assert "POST /message/copy" not in allowed(granted, topic="mine1", to="other")
    assert "POST /message/copy" not in allowed(granted, topic="other", to="mine1")
    assert "POST /message/copy" not in allowed("administer", topic="mine1", to="mine2")
    assert "POST /message/redrive" not in allowed("operate:mine*", topic="mine1")


def test_every_command_has_a_role() -> None:
    """A command missing from the table would be refused to every client."""
    assert set(commands.COMMANDS) == set(COMMANDS)


def test_publish_and_consume_give_permissions_of_auth() -> None:
    """Only `publish` and `consume` give permissions: no other role includes them."""
    granted = rights.parse("publish:a*,consume,administer,register:b")

    assert [("a*", "publish"), ("*", "subscribe")] == permissions(granted)


def test_checks_are_made_only_if_options_ask_for_them(tmp_path: Path) -> None:
    """Without tokens there are no checks; nsqd does not start with a missing token file."""
    file = tmp_path / "tokens"
    token, line = tokens.make("a", "read")
    file.write_text(line)
    (tmp_path / "token").write_text("a-token-of-some-length")

    assert access_of(NsqdOptions()) is None
    for key, value in (("http_token", f"@{tmp_path}/token"), ("token_file", str(file))):
        access = access_of(changed(NsqdOptions(), **{key: value}))
        assert access is not None
        assert access.needs_token
        assert (key == "token_file") == (access.find_token(token)[0] is not None)
    with pytest.raises(StartError, match="--token-file"):
        access_of(changed(NsqdOptions(), token_file=str(tmp_path / "missing")))
