"""A change of a topic over HTTP is answered when it is done, or with what keeps it from that."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from sparq.log.disk import DiskError, RealDisk
from sparq.nsqd import http
from tests.nsqd.daemon import start, stop
from tests.support.waiting import until

REASON = "input/output error"


async def test_a_deletion_that_the_disk_refuses_is_not_answered_with_200(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 says why; nsqd tries again by itself, and once the disk takes it the topic is gone."""
    nsqd = await start(tmp_path)
    await nsqd.post("/pub?topic=t", b"x")
    monkeypatch.setattr(http, "DONE_SECONDS", 0.1)
    rename = RealDisk.rename

    def refuse(_disk: RealDisk, old: str, _new: str) -> None:
        raise DiskError("rename", old, errno.EIO)

    monkeypatch.setattr(RealDisk, "rename", refuse)
    status, answer = await nsqd.ask("POST", "/topic/delete?topic=t")
    assert status == 503
    assert json.loads(answer)["message"].startswith("NOT_DONE: ")
    assert REASON in json.loads(answer)["message"]

    monkeypatch.setattr(RealDisk, "rename", rename)
    await until(lambda: nsqd.nsqd.broker.unsettled("t") is None)
    await nsqd.post("/topic/create?topic=t")
    assert (await nsqd.topic("t"))["log_messages"] == 0
    await stop(nsqd)
    again = await start(tmp_path)
    assert (await again.topic("t"))["log_messages"] == 0
    await stop(again)
