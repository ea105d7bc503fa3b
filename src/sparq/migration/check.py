"""Inspects a data path of Go's nsqd or of sparq's without changing it, for `nsq_check`.

1. Every byte that counts is read: all records of Go's queues, and what `sparq.log.check` reads.
2. Depths are those that nsqd will show after a start on the same files, which imports Go's.
3. The disk refuses changes, and no other process writes to the data path meanwhile.
"""

from collections.abc import Iterator

import numpy as np

from sparq.log import check as logs
from sparq.log.check import TOPICS, CheckReport, CheckRow, Progress
from sparq.log.disk import Disk
from sparq.migration.queues import (
    COMMITTED,
    TEMPORARY,
    GoDataError,
    GoQueue,
    GoTopic,
    go_files,
    read_queue,
    survey,
)
from sparq.migration.records import BadBytes
from sparq.protocol.instant import Instant


def check(disk: Disk, data_path: str, now: Instant, progress: Progress) -> CheckReport | None:
    """Inspect a data path; None: it has no files of sparq's nsqd or of Go's.

    Raises:
        DiskError: a folder or file cannot be opened or read at all.
    """
    is_imported = disk.exists(f"{data_path}/{COMMITTED}/{TOPICS}")
    # After the rename, Go's files are only moved aside: the new logs already have their messages.
    is_go = bool(go_files(disk, data_path)) and not is_imported
    report = logs.check(disk, data_path, now, progress)
    if report is None:
        if not is_go and not is_imported:
            return None
        report = CheckReport("sparq")
    if disk.exists(f"{data_path}/{TEMPORARY}"):
        report.notes.insert(0, "an import was interrupted: nsqd will restart it")
    if is_imported:
        report.notes.append("an import was interrupted at its last step: nsqd will finish it")
        logs.check_topics(disk, f"{data_path}/{COMMITTED}/{TOPICS}", now, progress, report)
    if is_go:
        _check_go(disk, data_path, progress, report)
    return report


def size_of(disk: Disk, data_path: str) -> int:
    """Estimate how many bytes `check` will read.

    Raises:
        DiskError: a folder or file cannot be read.
    """
    queues = (logs.file_size(disk, f"{data_path}/{name}") for name in go_files(disk, data_path))
    return (
        sum(queues) + logs.size_of(disk, data_path) + logs.size_of(disk, f"{data_path}/{COMMITTED}")
    )


def _check_go(disk: Disk, data_path: str, progress: Progress, report: CheckReport) -> None:
    report.kind = "go"
    if report.rows:
        report.kind = "both"
        report.notes.append(
            "the data path has both sparq topics and files of Go's nsqd: nsqd will refuse to start"
        )
    try:
        data = survey(disk, data_path)
    except GoDataError as error:
        report.damage.append(str(error))
        return
    report.notes += data.notes
    for topic in data.topics.values():
        report.rows += _go_rows(disk, data_path, topic, progress)


def _go_rows(disk: Disk, data_path: str, topic: GoTopic, progress: Progress) -> Iterator[CheckRow]:
    own = CheckRow(topic.name, "", topic.queue.paused)
    _count_queue(disk, data_path, topic.queue, own, progress)
    rows = []
    for name, queue in topic.channels.items():
        row = CheckRow(topic.name, name, queue.paused)
        _count_queue(disk, data_path, queue, row, progress)
        rows.append(row)
    if rows and not topic.queue.paused:
        # nsqd moves the messages of the topic's own queue into all of its channels immediately.
        for row in rows:
            row.depth += own.depth
        own.notes.append(
            f"{own.depth} messages in the topic's own queue will be copied to each of its channels"
        )
        own.depth = 0
    yield own
    yield from rows


def _count_queue(
    disk: Disk, data_path: str, queue: GoQueue, row: CheckRow, progress: Progress
) -> None:
    row.notes += queue.notes
    row.size_bytes = queue.size_bytes
    for found in read_queue(disk, data_path, queue):
        if isinstance(found, BadBytes):
            row.damage.append(str(found))
            progress(found.size)
        else:
            row.depth += len(found)
            row.attempted += int(np.count_nonzero(found.attempts()))
            progress(int(found.sizes.sum()))
    if queue.positions is not None and not row.damage and queue.positions.depth != row.depth:
        row.notes.append(f"its metadata file reports {queue.positions.depth} messages")
