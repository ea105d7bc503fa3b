"""The audit log: order, limits on refusals, unwritable files, and publishing to a topic."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sparq.daemon.access import audit
from sparq.daemon.access.audit import AuditLog
from sparq.program.lifecycle import StartError
from tests.daemon.access.test_audit_file import ENTRY, actions


def test_an_audit_file_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A link, pipe or folder as audit file is a StartError: it could be another file, or block."""
    (tmp_path / "other").write_text("somebody's")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "dangling").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe", "nowhere/audit", "."):
        with pytest.raises(StartError, match=r"^--audit-log: "):
            AuditLog(str(tmp_path / name))

    assert not (tmp_path / "target").exists()


async def test_entries_are_written_in_their_order(tmp_path: Path) -> None:
    """Concurrent entries are written in order, even if their requests are cancelled."""
    log = AuditLog(str(tmp_path / "audit"))
    tasks = [asyncio.create_task(log.record(replace(ENTRY, action=f"a{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::7]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await log.close()

    page = await log.page(limit=100)
    assert [f"a{number}" for number in range(49, -1, -1)] == actions(page)


async def test_an_entry_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry that cannot be written is logged; ``unavailable`` returns why, until it is fixed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    log = AuditLog(str(folder / "audit"))
    assert "" == await log.unavailable()
    (folder / "audit").unlink()
    (folder / "audit").mkdir()

    await log.record(ENTRY)

    assert "Is a directory" == await log.unavailable()
    assert any("empty_channel" in line and "not written" in line for line in caplog.messages)
    (folder / "audit").rmdir()
    assert "" == await log.unavailable()


async def test_without_a_file_the_last_entries_are_remembered() -> None:
    """Without a file, the last `REMEMBERED` entries are kept in memory."""
    log = AuditLog()
    for number in range(audit.REMEMBERED + 5):
        await log.record(replace(ENTRY, action=f"a{number}"))
    found: list[str] = []
    before: str | None = ""
    while before is not None:
        page = await log.page(before, 300)
        found += actions(page)
        before = page.next

    assert not log.is_kept
    assert [f"a{number}" for number in range(audit.REMEMBERED + 4, 4, -1)] == found
    assert "" == await log.unavailable()


@pytest.mark.parametrize("is_kept", [True, False])
async def test_entries_are_found_by_their_fields(tmp_path: Path, is_kept: bool) -> None:
    """Entries must match all given fields; unknown and empty filters are ignored."""
    log = AuditLog(str(tmp_path / "audit") if is_kept else "")
    await log.record(ENTRY)
    await log.record(replace(ENTRY, user="bob", topic="t2"))
    await log.record(replace(ENTRY, user="bob", outcome="failed", action="pause_channel"))

    async def users(**filters: str) -> list[str]:
        return [entry["user"] for entry in (await log.page(filters=filters)).entries]

    assert ["bob", "bob", "alice"] == await users(user="", colour="red")
    assert ["bob"] == await users(user="bob", topic="t")
    assert ["bob"] == await users(outcome="failed")
    assert ["alice"] == await users(topic="t", action="empty_channel")
    assert [] == await users(user="bo")


async def test_refused_requests_are_limited_so_that_changes_stay_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 5,000 refusals REFUSED_MAX are recorded; after REFUSED_SECONDS one counts the rest."""
    moment = [0.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: moment[0])
    log = AuditLog()
    await log.record(ENTRY)
    for _ in range(5000):
        log.refused(replace(ENTRY, outcome="refused"))
    await log.close()
    assert audit.REFUSED_MAX + 1 == len((await log.page(limit=1000)).entries)

    moment[0] += audit.REFUSED_SECONDS
    for _ in range(2):
        log.refused(replace(ENTRY, outcome="refused", detail="FORBIDDEN"))
    await log.close()
    assert audit.REFUSED_MAX + 2 == len((await log.page(limit=1000)).entries)

    detail = (await log.page(limit=1)).entries[0]["detail"]
    left_out = 5000 - audit.REFUSED_MAX
    assert f"FORBIDDEN; {left_out} more refused requests were not recorded" == detail


async def test_entries_are_published_to_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Entries are published in the background; a failed publish is logged, and later ones go on."""
    published: list[bytes] = []
    gone = asyncio.Event()

    async def publish(line: bytes) -> None:
        if not published:
            published.append(b"")
            raise OSError("nobody there")
        published.append(line)
        gone.set()

    log = AuditLog(publish=publish)
    await log.record(ENTRY)
    await log.record(replace(ENTRY, action="second"))
    await asyncio.wait_for(gone.wait(), 10)
    await log.close()

    assert "second" == json.loads(published[1])["action"]
    assert any("nobody there" in line for line in caplog.messages)


async def test_requests_do_not_wait_for_a_publish_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If publishing hangs, requests do not wait, and entries above UNPUBLISHED_MAX are logged."""

    async def publish(_line: bytes) -> None:
        await asyncio.Event().wait()

    log = AuditLog(publish=publish)
    for _ in range(audit.UNPUBLISHED_MAX + 10):
        await log.record(ENTRY)
    await log.close()

    assert any("not published" in line for line in caplog.messages)
