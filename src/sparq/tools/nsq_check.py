"""The program `nsq_check`: checks an nsqd's data path while no nsqd uses it.

It reads both formats: sparq's logs and ledgers, and the queues of Go's nsqd, for which it reports
what an import would find. It changes nothing; while it runs, no nsqd can start on the data path.

Exit status: 0 everything is intact, 1 something is damaged, 2 it could not check (usage, a running
nsqd, a data path that is unreadable or empty, standard output that cannot be written).
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import time

from sparq.log.check import CheckReport, Progress
from sparq.log.disk import DiskError, ReadOnlyDisk
from sparq.migration.check import check, size_of
from sparq.program.stdout import write_stdout
from sparq.protocol.instant import Instant
from sparq.tools.commands import CHECK_FAILED, CheckOptions
from sparq.tools.tables import table

SOUND, DAMAGED = 0, 1
MIB = 1 << 20
STEP_SECONDS = 0.2
KINDS = {"go": "Go's nsqd (not imported yet)", "sparq": "sparq", "both": "sparq and Go's nsqd"}
COLUMNS = ("topic", "channel", "depth", "deferred", "attempted", "mib", "paused", "damaged")


class CheckError(Exception):
    """The data path could not be checked; the text says why."""


def start(data_path: str, options: CheckOptions) -> int:
    """Check a data path; return the exit status."""
    try:
        findings = check_data_path(data_path)
    except CheckError as failure:
        sys.stderr.write(f"nsq_check: {failure}\n")
        return CHECK_FAILED
    damage = findings.all_damage()
    text = as_text(data_path, findings)
    if options.json:
        document = {
            "kind": findings.kind,
            "sound": not damage,
            "topics": [dataclasses.asdict(row) for row in findings.rows],
            "damage": findings.damage,
            "notes": findings.notes,
        }
        text = json.dumps(document, indent=1) + "\n"
    if not write_stdout(text):
        return CHECK_FAILED
    return DAMAGED if damage else SOUND


def check_data_path(data_path: str) -> CheckReport:
    """Check a data path, holding its lock.

    Raises:
        CheckError: it cannot be checked, or holds no data.
    """
    disk = ReadOnlyDisk()
    path = os.path.abspath(data_path)
    if not os.path.isdir(path):
        raise CheckError(f"{data_path}: no such folder")
    try:
        held = disk.lock(path)
        try:
            now = Instant(time.time_ns(), time.monotonic_ns())
            findings = check(disk, path, now, terminal_progress(size_of(disk, path)))
        finally:
            held.close()
    except DiskError as error:
        if error.operation == "lock" and error.number == errno.EWOULDBLOCK:
            raise CheckError(f"{data_path} is in use by an nsqd: stop it first") from error
        raise CheckError(str(error)) from error
    if findings is None:
        raise CheckError(f"{data_path}: no nsqd data found")
    return findings


def terminal_progress(total_bytes: int) -> Progress:
    """Return a callback that shows the progress of reading, only if stderr is a terminal."""
    if not sys.stderr.isatty():
        return lambda _size: None
    done, shown = 0, 0.0

    def progress(size_bytes: int) -> None:
        nonlocal done, shown
        done += size_bytes
        now = time.monotonic()
        if now - shown >= STEP_SECONDS:
            shown = now
            share = 100 * min(done, total_bytes) // max(total_bytes, 1)
            sys.stderr.write(f"\r\x1b[Kread {done / MIB:,.0f} MiB, {share} %\r")

    return progress


def as_text(data_path: str, findings: CheckReport) -> str:
    """Format the findings for a person."""
    damage = findings.all_damage()
    lines = [f"{data_path}: data of {KINDS[findings.kind]}", ""]
    rows = [
        {
            **dataclasses.asdict(row),
            "mib": round(row.size_bytes / MIB, 1) if not row.channel or row.size_bytes else None,
            "damaged": len(row.damage) or None,
        }
        for row in findings.rows
    ]
    if rows:
        lines += [*table(COLUMNS, rows), ""]
    lines += [f"damaged: {text}" for text in damage]
    lines += [f"note: {text}" for text in findings.all_notes()]
    places = "1 place" if len(damage) == 1 else f"{len(damage)} places"
    lines.append(f"damage in {places}" if damage else "sound")
    return "\n".join(lines) + "\n"
