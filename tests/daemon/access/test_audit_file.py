"""The audit log's file: one line per entry, bounded in size, read from its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import audit_file
from sparq.daemon.access.audit_file import LINE_BYTES_MAX, AuditEntry, AuditFile, to_line

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


def actions(page: audit_file.AuditPage) -> list[str]:
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
    monkeypatch.setattr(audit_file, "BLOCK_BYTES", block_bytes)
    log = AuditFile(str(tmp_path / "audit"), file_bytes_max=4000)
    count = 50
    for number in range(count):
        log.append(numbered(number))
    found, before, pages = [], "", 0
    while True:
        page = log.page(before, 7, everything)
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
    first = log.page("", 2, everything)
    for number in range(4, 8):
        log.append(numbered(number))
    assert first.next is not None

    assert ["a3", "a2"] == actions(first)
    assert ["a1", "a0"] == actions(log.page(first.next, 2, everything))


def test_old_files_are_deleted(tmp_path: Path) -> None:
    """At most KEPT + 1 files of limited size exist, readable only by their owner."""
    log = AuditFile(str(tmp_path / "audit"), file_bytes_max=1000)
    for number in range(40):
        log.append(numbered(number))

    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert audit_file.KEPT + 1 == len(sizes)
    assert max(sizes) <= 1000
    assert {0o600} == {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}


def test_one_page_does_a_bounded_amount_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page reads at most SCAN_BYTES_MAX, then returns the position at which to continue."""
    monkeypatch.setattr(audit_file, "SCAN_BYTES_MAX", 2000)
    log = AuditFile(str(tmp_path / "audit"))
    for number in range(100):
        log.append(numbered(number))
    before, scanned, rounds = "", 0, 0
    while True:
        page = log.page(before, 50, lambda entry: entry["action"] == "a0")
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

    assert audit_file.AuditPage() == log.page(before, 10, everything)


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

    assert ["a1", "a0"] == actions(log.page("", 10, everything))


def test_long_lines_are_read_in_bounded_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are read in bounded parts, even from 1 MiB of zeros without a line end."""
    lengths: list[int] = []
    monkeypatch.setattr(audit_file, "from_line", lambda line: lengths.append(len(line)))
    path = tmp_path / "audit"
    path.write_bytes(b"\0" * (1 << 20))

    AuditFile(str(path)).page("", 10, everything)

    assert sum(lengths) <= 1 << 20
    assert max(lengths) <= LINE_BYTES_MAX + audit_file.BLOCK_BYTES


def test_a_file_renamed_by_another_program_is_replaced(tmp_path: Path) -> None:
    """After another program renames the file, entries go to a new file, without a signal."""
    path = tmp_path / "audit"
    log = AuditFile(str(path))
    log.append(numbered(0))
    path.rename(tmp_path / "elsewhere")
    log.append(numbered(1))

    assert ["a1"] == actions(log.page("", 10, everything))
