"""Counts what an action of a page passes, from its handler to the request to nsqd and back."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import pytest

import sparq
from sparq.daemon.http import Call, Route
from sparq.nsqadmin.access import AdminAccess, AdminRoute
from tests.nsqadmin.cluster import admin
from tests.support.servers import spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

SPARQ = f"{Path(sparq.__file__).parent}/"
FILES_MAX = 12
CALLS_MAX = 150

# Only the handler's task and the tasks that it starts count, not the rounds of the watch.
TRACED: ContextVar[bool] = ContextVar("traced", default=False)


async def test_a_pause_stays_within_its_limits_of_files_and_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's pause of a topic passes few files and calls; a coroutine counts once."""
    frames: dict[int, FrameType] = {}
    before: dict[int, FrameType] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and TRACED.get() and name.startswith(SPARQ) and name.endswith(".py"):
            frames.setdefault(id(frame), frame)

    guarded = AdminAccess.guarded

    def traced(access: AdminAccess, route: AdminRoute) -> Route:
        checked = guarded(access, route)
        handler = checked.handler

        async def handle(call: Call) -> object:
            if (route.method, route.path) != ("POST", "/topics/:topic"):
                result = handler(call)
                return await result if hasattr(result, "__await__") else result
            outer: FrameType | None = sys._getframe()
            while outer is not None:  # these are resumed, not called
                frames[id(outer)] = outer
                outer = outer.f_back
            before.update(frames)
            TRACED.set(True)
            sys.setprofile(note)
            try:
                return await handler(call)
            finally:
                sys.setprofile(None)

        return checked._replace(handler=handle)

    monkeypatch.setattr(AdminAccess, "guarded", traced)
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd,
    ):
        nsqd.post("/topic/create?topic=t")
        wait_for(lambda: lookupd.request("GET", "/lookup?topic=t")[0] == 200)
        async with admin(lookupd_http_addresses=(lookupd.http,)) as found:
            form = {"Content-Type": "application/x-www-form-urlencoded", "HX-Request": "true"}
            counts = []
            for action in ("pause", "unpause", "pause"):
                frames.clear()
                before.clear()
                body = f"action={action}_topic".encode()
                status, _, _ = await found.raw("POST", "/topics/t", body, form)
                assert status == 200
                called = [frame for at, frame in frames.items() if at not in before]
                counts.append(len(called))
            files = {frame.f_code.co_filename.removeprefix(SPARQ) for frame in called}

        assert nsqd.get_json("/stats?format=json&topic=t")["topics"][0]["paused"]
    assert len(files) <= FILES_MAX, " ".join(sorted(files))
    assert min(counts) <= CALLS_MAX
