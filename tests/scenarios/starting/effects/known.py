"""Flags that NSQ does not have: tokens with roles, and the audit log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from sparq.daemon.access import tokens
from sparq.protocol import commands
from sparq.protocol.commands import pub
from tests.scenarios.starting.effects.common import ERROR
from tests.scenarios.starting.effects.limits import ask
from tests.support.flag_rows import FlagDaemons, FlagServer, Row
from tests.support.servers import spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for


def token_file(server: FlagServer) -> None:
    """A token with the role is accepted over HTTP and V2; requests without the role are refused."""
    token = server.helpers["publisher"]
    assert ask(server, "POST", "/pub?topic=t", body=b"x") == 401
    assert ask(server, "POST", "/pub?topic=t", token=token, body=b"x") == 200
    assert ask(server, "POST", "/topic/delete?topic=t", token=token) == 403
    with V2Client(server) as line:
        assert line.ask(pub("t", b"x")) == (ERROR, b"E_AUTH_FIRST AUTH required before PUB")
    with V2Client(server) as line:
        assert b'"identity":"web"' in line.ask(commands.auth(token.encode()))[1]
        assert line.ask(pub("t", b"x")) == OK


def audit_file(server: FlagServer) -> None:
    """A refused request is in the audit file."""
    assert ask(server, "POST", "/topic/delete?topic=kept") == 401
    path = Path(server.places["data"]) / "audit"

    def noted() -> bool:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return any(entry["topic"] == "kept" for entry in entries)

    wait_for(noted)


def lookupd_token(server: FlagServer) -> None:
    """nsqd registers with an nsqlookupd that requires a token."""
    lookupd = server.helpers["asking"]

    def ports() -> list[int]:
        return [node["tcp_port"] for node in lookupd.get_json("/nodes")["producers"]]

    wait_for(lambda: server.tcp_port in ports())


@contextlib.contextmanager
def neighbours(daemons: FlagDaemons, folder: Path) -> Iterator[None]:
    """Set up the token file of the rows, and an nsqlookupd that requires one of the tokens."""
    token, line = tokens.make("web", "publish")
    registrar, another = tokens.make("nsqds", "register")
    file = folder / "tokens"
    file.write_text(f"{line}\n{another}\nanybody read -\n")
    asks = ("--require-token", f"--token-file={file}")
    with spawn_nsqlookupd(folder, *asks, name="asking") as lookupd:
        daemons.helpers.update(publisher=token, asking=lookupd)
        daemons.places.update(tokens=str(file), registrar=registrar, asking=lookupd.tcp)
        yield


GROUPS = {
    "known": [
        Row("lookupd-tcp-address", ["{asking}"], lookupd_token),
        Row("lookupd-token", "{registrar}", lookupd_token),
        Row("token-file", "{tokens}", token_file),
        Row("audit-file", "{data}/audit", audit_file),
    ],
}
