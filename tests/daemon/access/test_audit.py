"""The audit log: one line per entry, bounded in size, in order, and read from its end."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import audit
from sparq.daemon.access.audit import (
    LINE_BYTES_MAX,
    AuditEntry,
    AuditFile,
    AuditLog,
    page_of,
    to_line,
)
from sparq.program.lifecycle import StartError

ENTRY = AuditEntry("alice", "header", "192.0.2.7", "empty_channel", "done", topic="t", channel="c")
HOSTILE = [
    "a\r\nb",
    "\x1b[2J\x00\x07",
    "\u2028\u2029\x85",
    '","user":"root',
    "\udcff",
    "<script>",
    "x" * 100_000,
    "\x01" * 100_000,
]


def everything(_entry: dict[str, Any]) -> bool:
    return True


def numbered(number: int) -> bytes:
    return to_line(replace(ENTRY, action=f"a{number}"), 0)


def actions(page: audit.AuditPage) -> list[str]:
    return [entry["action"] for entry in page.entries]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_entry_with_hostile_text_is_one_line(text: str) -> None:
    """With hostile text in every field, an entry is one printable ASCII line of bounded length."""
    entry = AuditEntry(text, text, text, text, "done", text, text, text, text, {text: text}, text)

    line = to_line(entry, 0)

    assert line.isascii()
    assert line[:-1].decode().isprintable()
    assert line.endswith(b"}\n")
    assert len(line) <= LINE_BYTES_MAX
    assert text[:100] == json.loads(line)["user"][:100]


def test_an_entry_has_all_its_fields() -> None:
    """An entry has all its fields, the time first, so that lines sort by time."""
    entry = replace(ENTRY, arguments={"to": "earliest"}, user_agent="curl", node="n:1")

    assert {
        "time": "2027-01-15T08:00:00.000Z",
        "user": "alice",
        "via": "header",
        "remote": "192.0.2.7",
        "action": "empty_channel",
        "outcome": "done",
        "topic": "t",
        "channel": "c",
        "node": "n:1",
        "user_agent": "curl",
        "detail": "",
        "arguments": {"to": "earliest"},
    } == json.loads(to_line(entry, 1_800_000_000))
    assert to_line(entry, 0).startswith(b'{"time":')


@pytest.mark.parametrize("block_bytes", [1, 190, 1000, 64 << 10])
def test_pages_go_back_to_the_oldest_entry_over_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """Pages over several files and blocks have each entry once, newest first."""
    monkeypatch.setattr(audit, "BLOCK_BYTES", block_bytes)
    log = AuditFile(str(tmp_path / "audit"), file_bytes_max=4000)
    count = 50
    for number in range(count):
        log.append(numbered(number))
    found, before, pages = [], "", 0
    while True:
        page = page_of(log.lines(before), 7, everything)
        assert len(page.entries) <= 7
        found += actions(page)
        pages += 1
        if page.next is None:
            break
        before = page.next

    assert len(list(tmp_path.iterdir())) >= 3
    assert [f"a{number}" for number in range(count - 1, -1, -1)] == found


def test_paging_goes_on_where_it_was_when_the_file_is_rotated(tmp_path: Path) -> None:
    """A position for paging stays valid after a rotation: it does not depend on the file name."""
    log = AuditFile(str(tmp_path / "audit"), file_bytes_max=1000)
    for number in range(4):
        log.append(numbered(number))
    first = page_of(log.lines(""), 2, everything)
    for number in range(4, 8):
        log.append(numbered(number))
    assert first.next is not None

    assert ["a3", "a2"] == actions(first)
    assert ["a1", "a0"] == actions(page_of(log.lines(first.next), 2, everything))


def test_old_files_are_deleted(tmp_path: Path) -> None:
    """At most KEPT + 1 files of limited size exist, readable only by their owner."""
    log = AuditFile(str(tmp_path / "audit"), file_bytes_max=1000)
    for number in range(40):
        log.append(numbered(number))

    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert audit.KEPT + 1 == len(sizes)
    assert max(sizes) <= 1000
    assert {0o600} == {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}


def test_one_page_does_a_bounded_amount_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page reads at most SCAN_BYTES_MAX, then returns the position at which to continue."""
    monkeypatch.setattr(audit, "SCAN_BYTES_MAX", 2000)
    log = AuditFile(str(tmp_path / "audit"))
    for number in range(100):
        log.append(numbered(number))
    before, scanned, rounds = "", 0, 0
    while True:
        page = page_of(log.lines(before), 50, lambda entry: entry["action"] == "a0")
        assert page.scanned_bytes < 2000 + LINE_BYTES_MAX
        scanned += page.scanned_bytes
        rounds += 1
        if page.next is None:
            break
        before = page.next

    assert ["a0"] == actions(page)
    assert rounds > 5
    assert (tmp_path / "audit").stat().st_size == scanned


@pytest.mark.parametrize("before", ["x", "1", "1-", "-1", "1-2-3", "²-1", "9" * 5000 + "-1", "1-1"])
def test_an_unknown_position_gives_an_empty_page(tmp_path: Path, before: str) -> None:
    """An invalid or unknown position gives an empty page."""
    log = AuditFile(str(tmp_path / "audit"))
    log.append(numbered(0))

    assert audit.AuditPage() == page_of(log.lines(before), 10, everything)


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    """Truncated lines, zeros and foreign lines are skipped, and the next entry is whole."""
    path = tmp_path / "audit"
    log = AuditFile(str(path))
    log.append(numbered(0))
    with path.open("ab") as file:
        file.write(
            b"\0" * 200_000 + b"\n[1]\nnull\n{}\n" + b"[" * 60_000 + b"\n" + numbered(9)[:50]
        )
    log.append(numbered(1))

    assert ["a1", "a0"] == actions(page_of(log.lines(""), 10, everything))


def test_long_lines_are_read_in_bounded_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are read in bounded parts, even from 1 MiB of zeros without a line end."""
    lengths: list[int] = []
    monkeypatch.setattr(audit, "from_line", lambda line: lengths.append(len(line)))
    path = tmp_path / "audit"
    path.write_bytes(b"\0" * (1 << 20))

    page_of(AuditFile(str(path)).lines(""), 10, everything)

    assert sum(lengths) <= 1 << 20
    assert max(lengths) <= LINE_BYTES_MAX + audit.BLOCK_BYTES


def test_a_file_renamed_by_another_program_is_replaced(tmp_path: Path) -> None:
    """After another program renames the file, entries go to a new file, without a signal."""
    path = tmp_path / "audit"
    log = AuditFile(str(path))
    log.append(numbered(0))
    path.rename(tmp_path / "elsewhere")
    log.append(numbered(1))

    assert ["a1"] == actions(page_of(log.lines(""), 10, everything))


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
