"""Flags that NSQ has not: who may do what, by tokens in a file, and where it is noted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from sparq.daemon.access import tokens
from sparq.protocol import commands
from tests.nsqd.effects.common import ADDRESSES, ERROR
from tests.nsqd.effects.limits import ask
from tests.nsqd.line import OK, Line, pub
from tests.told import Row, Told, ToldServer
from tests.waiting import wait_for


def token_file(server: ToldServer) -> None:
    """Over HTTP and V2 whoever has the role may, and nobody else."""
    token = server.helpers["publisher"]
    assert ask(server, "POST", "/pub?topic=t", body=b"x") == 401
    assert ask(server, "POST", "/pub?topic=t", token=token, body=b"x") == 200
    assert ask(server, "POST", "/topic/delete?topic=t", token=token) == 403
    with Line(server) as line:
        assert line.ask(pub("t", b"x")) == (ERROR, b"E_AUTH_FIRST AUTH required before PUB")
    with Line(server) as line:
        assert b'"identity":"web"' in line.ask(commands.auth(token.encode()))[1]
        assert line.ask(pub("t", b"x")) == OK


def audit_file(server: ToldServer) -> None:
    """What was refused is in it."""
    assert ask(server, "POST", "/topic/delete?topic=kept") == 401
    path = Path(server.places["data"]) / "audit"

    def noted() -> bool:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return any(entry["topic"] == "kept" for entry in entries)

    wait_for(noted)


@contextlib.contextmanager
def neighbours(daemons: Told, folder: Path) -> Iterator[None]:
    """The file of tokens that a row names."""
    token, line = tokens.make("web", "publish")
    (folder / "tokens").write_text(line)
    daemons.helpers["publisher"] = token
    daemons.places["tokens"] = str(folder / "tokens")
    yield


GROUPS = {
    "known": [
        *ADDRESSES,
        Row("token-file", "{tokens}", token_file),
        Row("audit-file", "{data}/audit", audit_file),
    ],
}
