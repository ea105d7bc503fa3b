"""`/policies` and `--policies`: read, set, refused; in effect after SIGHUP and kill -9, too."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.nsqd.daemon import Daemon, start, stop
from tests.nsqd.test_policy_document import ENTRIES, FLAGS, TOML, document
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for

PATH = "/policies"


async def put(nsqd: Daemon, body: bytes, query: str = "", kind: str = "") -> tuple[int, Any]:
    """PUT a document; return the status and the JSON answer."""
    head = f"PUT {PATH}{query} HTTP/1.1\r\nContent-Type: {kind or 'application/json'}"
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    status, _, answer = await nsqd.raw(head, length + body)
    return status, json.loads(answer)


async def get_policies(nsqd: Daemon, query: str = "") -> Any:
    status, answer = await nsqd.ask("GET", PATH + query)
    assert 200 == status
    return json.loads(answer)


async def test_policies_are_set_shown_and_dropped(nsqd: Daemon) -> None:
    """PUT takes TOML or JSON; PUT and DELETE return the changes, `dry_run` without making them."""
    for channel in ("slow", "quick"):
        await nsqd.post("/topic/create?topic=clicks")
        await nsqd.post(f"/channel/create?topic=clicks&channel={channel}")
    assert {"policies": [], "configured": [], "flags": FLAGS} == await get_policies(nsqd)

    changes = [
        {
            "topic": "clicks",
            "channel": channel,
            "setting": setting,
            "before": before,
            "after": after,
        }
        for channel, setting, before, after in (
            (None, "retention_time", "0s", "26h0m0s"),
            ("slow", "max_channel_consumers", 0, 2),
            ("slow", "max_channel_lag_time", "0s", "1m0s"),
        )
    ]
    answer = {"changed": 3, "changes": changes}
    assert (200, answer) == await put(nsqd, TOML, "?dry_run=true", "application/toml")
    assert [] == (await get_policies(nsqd))["policies"]
    assert (200, answer) == await put(nsqd, TOML, kind="application/toml; charset=utf-8")
    assert {"policies": ENTRIES, "configured": [], "flags": FLAGS} == await get_policies(nsqd)
    assert (200, {"changed": 0, "changes": []}) == await put(nsqd, document(*ENTRIES))
    back = [{**change, "before": change["after"], "after": change["before"]} for change in changes]
    for query in ("?dry_run=true", ""):
        status, text = await nsqd.ask("DELETE", PATH + query)
        assert (200, {"changed": 3, "changes": back}) == (status, json.loads(text))
    assert [] == (await get_policies(nsqd))["policies"]


async def test_settings_of_a_topic_and_channel_have_their_source(tmp_path: Path) -> None:
    """Each setting has its value and source, also for a topic or channel that does not exist."""
    file = tmp_path / "policies.toml"
    file.write_bytes(TOML)
    (tmp_path / "data").mkdir()
    nsqd = await start(tmp_path / "data", policies=str(file), max_channels=5)
    assert 200 == (await put(nsqd, document({"topic": "c*", "max_channel_consumers": 4})))[0]

    topic = await get_policies(nsqd, "?topic=clicks")
    assert ("clicks", None) == (topic["topic"], topic["channel"])
    assert list(FLAGS) == list(topic["settings"])
    assert {
        "retention_time": {"value": "26h0m0s", "source": "configured", "number": 1},
        "max_channels": {"value": 5, "source": "flags"},
        "max_channel_consumers": {"value": 4, "source": "policies", "number": 1},
        "max_channel_lag_time": {"value": "0s", "source": "flags"},
    }.items() <= topic["settings"].items()
    channel = await get_policies(nsqd, "?topic=clicks&channel=slow")
    assert "slow" == channel["channel"]
    assert {
        "max_channel_lag_bytes": {"value": 0, "source": "flags"},
        "max_channel_lag_time": {"value": "1m0s", "source": "configured", "number": 2},
        "max_channel_consumers": {"value": 4, "source": "policies", "number": 1},
        "message_ttl": {"value": "0s", "source": "flags"},
        "max_attempts": {"value": 0, "source": "flags"},
    } == channel["settings"]
    for query, code in (("?topic=a+b", "TOPIC"), ("?topic=a&channel=", "CHANNEL")):
        status, answer = await nsqd.ask("GET", PATH + query)
        assert (400, f"INVALID_ARG_{code}") == (status, json.loads(answer)["message"])
    await stop(nsqd)


async def test_policies_that_cannot_be_written_change_nothing(
    nsqd: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the policies cannot be written, PUT gets 500 and changes nothing."""
    (Path(nsqd.nsqd.options.data_path) / "policies.json.new").mkdir()

    status, answer = await put(nsqd, document({"topic": "a", "max_channels": 1}))
    assert 500 == status
    assert answer["message"].startswith("INTERNAL_ERROR: ")
    assert [] == (await get_policies(nsqd))["policies"]


async def test_a_put_during_a_stop_is_refused(nsqd: Daemon) -> None:
    """While nsqd stops, a PUT gets 503 EXITING."""
    nsqd.nsqd.exiting = True
    status, answer = await put(nsqd, document({"topic": "a", "max_channels": 1}))
    assert (503, "EXITING") == (status, answer["message"])
    nsqd.nsqd.exiting = False


def test_sighup_reads_the_policy_file_again(tmp_path: Path) -> None:
    """SIGHUP reads the file again; an invalid file is logged, and the policies stay."""
    file = tmp_path / "policies.toml"
    file.write_text('[[policies]]\ntopic = "t"\nmax_topic_bytes = 1\n')
    with spawn_nsqd(tmp_path, f"--policies={file}") as server:
        assert 503 == server.request("POST", "/pub?topic=t", b"x")[0]
        file.write_text('[[policies]]\ntopic = "u"\nmax_topic_bytes = 1\n')
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "SIGHUP: policies read from the file: 1" in server.log_text)
        assert 200 == server.request("POST", "/pub?topic=t", b"x")[0]
        assert 503 == server.request("POST", "/pub?topic=u", b"x")[0]
        file.write_text('[[policies]]\ntopic = "u"\n')
        os.kill(server.pid, signal.SIGHUP)
        why = f"SIGHUP: keeping the old policies: {file}: policy 1 has no settings"
        wait_for(lambda: why in server.log_text)
        assert 503 == server.request("POST", "/pub?topic=u", b"x")[0]
