"""Access checks: the identity of a request, refusals, counts, and audit entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from sparq.daemon.access import access as module
from sparq.daemon.access import audit, tokens
from sparq.daemon.access.access import EXPIRED, FORBIDDEN, UNAUTHORISED, Access, RefusedError, build
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.rules import OPEN, Role, of_topic
from sparq.daemon.http import Call, Route
from sparq.daemon.options import AccessOptions
from sparq.program.lifecycle import StartError

MASTER = "master-token-of-some-length"
PING = Route("GET", "/ping", lambda _call: None)
STATS = Route("GET", "/stats", lambda _call: None)
CONFIG = Route("GET", "/config", lambda _call: None)
PAUSE = Route("POST", "/pause", lambda _call: None)
PUB = Route("POST", "/pub", lambda _call: None)
RIGHTS = {
    ("GET", "/ping"): OPEN,
    ("GET", "/stats"): of_topic(Role.READ),
    ("POST", "/pause"): of_topic(Role.OPERATE),
    ("POST", "/pub"): of_topic(Role.PUBLISH),
}
END = tokens.end_of("2030-01-01")


class TokenFile:
    """A token file: tokens for all topics, for some, with an expiry, and a line for `anybody`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole, whole = tokens.make("whole", "operate,publish")
        self.part, part = tokens.make("part", "operate:t*")
        self.ending, ending = tokens.make("ending", "operate", "2030-01-01")
        self.lines = [whole, part, ending, "anybody read:public -"]
        self.write(*self.lines)

    def write(self, *lines: str) -> None:
        self.path.write_text("\n".join(lines))


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens")


def call(route: Route, topic: str = "t1", shown: str = "", **headers: str) -> Call:
    if shown:
        headers["Authorization"] = f"Bearer {shown}"
    target = f"{route.path}?topic={topic}&channel=c&to=earliest&secret=x"
    return Call(make_mocked_request(route.method, target, CIMultiDict(headers)))


def status(access: Access, route: Route, shown: str = "", topic: str = "t1") -> int:
    """Return 200, or the status of the refusal."""
    try:
        access.decide(route, call(route, topic, shown))
    except RefusedError as error:
        return 403 if str(error) == FORBIDDEN else 401
    return 200


def test_without_options_there_are_no_checks(tmp_path: Path) -> None:
    """With an audit file only, everything is allowed without a token."""
    assert build(RIGHTS, "", AccessOptions()) is None
    access = build(RIGHTS, "", AccessOptions(audit_file=str(tmp_path / "audit")))

    assert access is not None
    assert not access.needs_token
    assert 200 == status(access, PAUSE)


def test_an_unusable_file_is_a_start_error(tmp_path: Path) -> None:
    """A token or audit file that cannot be used is a StartError with the flag's name."""
    missing = str(tmp_path / "missing" / "file")
    with pytest.raises(StartError, match=r"^--token-file: .*missing"):
        build(RIGHTS, "", AccessOptions(token_file=missing))
    with pytest.raises(StartError, match=r"^--audit-file: "):
        build(RIGHTS, MASTER, AccessOptions(audit_file=missing))


def test_the_http_token_protects_changes_and_private_routes() -> None:
    """With --http-token only, it is needed to change something, and to read more than figures."""
    access = build(RIGHTS, MASTER, AccessOptions())
    assert access is not None

    assert access.needs_token
    assert [200, 200, 401, 401] == [status(access, r) for r in (PING, STATS, CONFIG, PAUSE)]
    assert [200, 200] == [status(access, route, MASTER) for route in (CONFIG, PAUSE)]
    assert 401 == status(access, PAUSE, MASTER + "x")


def test_with_a_token_file_each_route_needs_its_role(file: TokenFile) -> None:
    """401: no valid token; 403: the role is missing; a route without a row needs `administer`."""
    access = Access(RIGHTS, token=MASTER, token_file=str(file.path))

    assert [200, 401, 401, 401] == [status(access, r) for r in (PING, STATS, CONFIG, PAUSE)]
    assert [200, 200, 403] == [status(access, r, file.whole) for r in (STATS, PAUSE, CONFIG)]
    assert [200, 403] == [status(access, PAUSE, file.part, topic) for topic in ("t2", "u")]
    assert [200] * 3 == [status(access, r, MASTER) for r in (STATS, PAUSE, CONFIG)]
    assert {UNAUTHORISED: 3, EXPIRED: 0, FORBIDDEN: 2} == access.refused


def test_a_wrong_token_has_fewer_rights_than_none(file: TokenFile) -> None:
    """A request with a wrong token does not get the rights of `anybody`."""
    access = Access(RIGHTS, token_file=str(file.path))

    assert 200 == status(access, STATS, topic="public")
    assert 401 == status(access, STATS, "x" * 40, topic="public")
    assert 401 == status(access, STATS, topic="private")


def test_a_token_is_valid_until_its_end(file: TokenFile) -> None:
    """An expired token is refused with the reason EXPIRED and its name."""
    moment = [END - 1.0]
    access = Access(RIGHTS, token_file=str(file.path), now=lambda: moment[0])

    caller = access.identify(file.ending, "192.0.2.1")
    assert (200, True) == (status(access, PAUSE, file.ending), caller.may(Role.OPERATE))
    moment[0] = END
    assert 401 == status(access, PAUSE, file.ending)
    for late in (access.identify(file.ending, "192.0.2.1"), access.review(caller)):
        assert ("ending", EXPIRED, ()) == (late.name, late.reason, late.grants)
    assert 1 == access.refused[EXPIRED]


def test_a_reload_takes_the_new_file_or_keeps_the_old(
    file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    """``reload`` reads the new tokens; a file with a mistake changes nothing and is logged."""
    access = Access(RIGHTS, token_file=str(file.path))
    file.write(*file.lines[1:])
    assert access.reload()
    assert 401 == status(access, PAUSE, file.whole)

    file.write("nonsense")
    assert not access.reload()
    assert "keeping the old tokens: --token-file: " in caplog.text
    assert 200 == status(access, PAUSE, file.part)
    assert not Access(RIGHTS, token=MASTER).reload()


async def served(
    access: Access, route: Route, request: Call, code: str = "", *, is_refused: bool = False
) -> None:
    """Do what the HTTP server does before and after a handler, which fails with `code`."""
    request.caller = access.decide(route, request)
    await access.note(route, request, code, is_refused=is_refused)


async def entries(log: AuditLog) -> list[dict[str, Any]]:
    """Return all entries, oldest first."""
    return (await log.page(limit=100)).entries[::-1]


async def test_changes_and_refusals_are_recorded_without_secrets(file: TokenFile) -> None:
    """Changes and refusals are recorded with user, action, topic and outcome, without secrets."""
    log = AuditLog()
    access = Access(RIGHTS, token=MASTER, token_file=str(file.path), audit=log)
    await served(access, PAUSE, call(PAUSE, shown=file.part, **{"User-Agent": "curl"}))
    await served(access, PAUSE, call(PAUSE, shown=MASTER), "TOPIC_NOT_FOUND")
    await served(access, STATS, call(STATS, shown=file.whole))
    await served(access, PUB, call(PUB, shown=file.whole))
    status(access, PAUSE, "x" * 40)
    await access.close()

    found = await entries(log)
    assert [
        ("part", "token", "POST /pause", "done", ""),
        ("http-token", "token", "POST /pause", "failed", "TOPIC_NOT_FOUND"),
        ("", "nobody", "POST /pause", "refused", UNAUTHORISED),
    ] == [tuple(one[k] for k in ("user", "via", "action", "outcome", "detail")) for one in found]
    assert {"topic": "t1", "channel": "c", "user_agent": "curl"}.items() <= found[0].items()
    assert {"to": "earliest"} == found[0]["arguments"]
    text = json.dumps(found)
    assert not any(secret in text for secret in (file.part, MASTER, "secret", "x" * 40))


async def test_an_entry_names_who_did_it_though_the_token_is_gone(file: TokenFile) -> None:
    """A token removed while its request is served is still named; its later requests are not."""
    log = AuditLog()
    access = Access(RIGHTS, token_file=str(file.path), audit=log)
    request = call(PAUSE, shown=file.whole)
    request.caller = access.decide(PAUSE, request)
    file.write(file.lines[1])
    assert access.reload()
    await access.note(PAUSE, request, "", is_refused=False)
    assert 401 == status(access, PAUSE, file.whole)
    await access.close()

    found = await entries(log)
    assert [("whole", "done"), ("", "refused")] == [(one["user"], one["outcome"]) for one in found]


async def test_a_handlers_refusal_is_recorded_as_one(file: TokenFile) -> None:
    """A request that the handler refuses for its effect is counted and recorded as refused."""
    log = AuditLog()
    access = Access(RIGHTS, token_file=str(file.path), audit=log)
    await served(access, PAUSE, call(PAUSE, shown=file.whole), "FORBIDDEN: why", is_refused=True)
    await access.close()

    assert 1 == access.refused[FORBIDDEN]
    (entry,) = await entries(log)
    assert ("whole", "refused", "FORBIDDEN: why") == tuple(
        entry[name] for name in ("user", "outcome", "detail")
    )


async def test_refused_commands_are_counted_and_recorded(
    file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused commands are counted by reason; each command has its own limit of entries."""
    monkeypatch.setattr(audit.time, "monotonic", lambda: 0.0)
    log = AuditLog()
    access = Access(RIGHTS, token_file=str(file.path), audit=log)
    for _ in range(1000):
        access.refuse(access.identify("", "192.0.2.1"), "AUTH")
    access.refuse(
        access.identify(file.part, "192.0.2.2", "go-nsq"),
        "SUB",
        detail="E_UNAUTHORIZED forbidden",
        topic="u",
        channel="c",
    )
    await access.close()

    assert {UNAUTHORISED: 1000, EXPIRED: 0, FORBIDDEN: 1} == access.refused
    found = await entries(log)
    first, last = found[0], found[-1]
    assert audit.REFUSED_MAX + 1 == len(found)
    assert ("", "nobody", "AUTH", UNAUTHORISED) == tuple(
        first[name] for name in ("user", "via", "action", "detail")
    )
    assert {
        **{"user": "part", "via": "token", "remote": "192.0.2.2", "action": "SUB"},
        **{"outcome": "refused", "topic": "u", "channel": "c", "user_agent": "go-nsq"},
        **{"detail": "E_UNAUTHORIZED forbidden"},
    }.items() <= last.items()


async def test_an_answer_does_not_wait_for_a_slow_disk(
    file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `WRITTEN_SECONDS` a request is answered even if its entry is not written yet."""
    log = AuditLog()
    waits: list[Any] = []

    async def record(entry: Any) -> None:
        waits.append(entry)
        await module.asyncio.Event().wait()

    monkeypatch.setattr(log, "record", record)
    monkeypatch.setattr(module, "WRITTEN_SECONDS", 0.01)
    access = Access(RIGHTS, token_file=str(file.path), audit=log)

    await served(access, PAUSE, call(PAUSE, shown=file.whole))
    assert 1 == len(waits)
