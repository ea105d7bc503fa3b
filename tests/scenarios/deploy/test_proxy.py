"""nsqadmin behind the nginx of docs/nsqadmin_rights.md: the proxy's header determines the role."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scenarios.deploy import proxy
from tests.scenarios.deploy.proxy import OUTSIDE, SESSION, SITE, Proxy
from tests.support.servers import AdminServer, NsqdServer, spawn_nsqd, start_first

TOPIC = "/api/topics/clicks"
PAUSE = b'{"action":"pause"}'
JSON = {"Content-Type": "application/json"}
ANN, BOB, EVE = ({"Cookie": f"{SESSION}={name}"} for name in ("ann", "bob", "eve"))


class ProxiedAdmin(NamedTuple):
    """The proxy, and the daemons that it protects."""

    proxy: Proxy
    nsqd: NsqdServer
    audit: Path

    def is_paused(self) -> bool:
        """Whether the topic is paused."""
        (topic,) = self.nsqd.get_json("/stats?format=json&topic=clicks")["topics"]
        return bool(topic["paused"])

    def entries(self) -> list[dict[str, str]]:
        """The entries of the audit log, the newest last."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedAdmin]:
    """nginx, nsqadmin with the document's flags, and an nsqd with a topic."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    folder = tmp_path_factory.mktemp("proxy")
    audit = folder / "audit.jsonl"
    with spawn_nsqd(folder) as nsqd, proxy.sign_in() as sign_in:
        nsqd.post("/topic/create?topic=clicks")
        nsqd.post("/channel/create?topic=clicks&channel=archive")
        flags = (*proxy.nsqadmin_flags(), "--trusted-proxy=127.0.0.1", f"--audit-log={audit}")
        flags = (*flags, f"--nsqd-http-address={nsqd.http}")
        with AdminServer("sparq.nsqadmin", folder, flags) as admin:
            start_first(admin)
            with closing(Proxy(folder, admin.http_port, sign_in)) as nginx:
                nginx.wait_ready()
                yield ProxiedAdmin(nginx, nsqd, audit)


def test_the_role_is_that_of_the_proxys_user(proxied: ProxiedAdmin) -> None:
    """Ann may do everything, Bob what can be undone; Eve, who has no role, sees nothing."""
    ask = proxied.proxy.ask
    for who, statuses in ((ANN, (200, 200, 200)), (BOB, (200, 200, 403)), (EVE, (403, 403, 403))):
        proxied.nsqd.post("/topic/unpause?topic=clicks")
        pause, _ = ask("POST", TOPIC, {**JSON, **who}, PAUSE)
        assert (statuses[1] == 200) == proxied.is_paused()
        empty = b'{"action":"empty"}'
        seen = ask("GET", TOPIC, who)[0]
        emptied = ask("POST", f"{TOPIC}/archive", {**JSON, **who}, empty)[0]
        assert statuses == (seen, pause, emptied), who
    told = [(entry["user"], entry["via"], entry["outcome"]) for entry in proxied.entries()[-6:]]
    assert ("ann@example.com", "header", "done") in told
    assert ("bob@example.com", "header", "refused") in told
    assert ("eve@example.com", "header", "refused") in told
    assert {OUTSIDE} == {entry["remote"] for entry in proxied.entries()}


def test_requests_without_a_session_are_redirected_to_sign_in(proxied: ProxiedAdmin) -> None:
    """Without a session every request is redirected to the sign-in page."""
    for method, path in (("GET", "/"), ("GET", TOPIC), ("DELETE", TOPIC), ("GET", "/config/log")):
        status, place = proxied.proxy.ask(method, path, {})
        assert 302 == status
        assert re.fullmatch(
            rf"https?://{SITE}(:\d+)?/oauth2/sign_in\?rd=https?://{SITE}{path}", place
        )
