"""Targets that are files: those that recovery, `nsq_check` and the import from Go's nsqd read.

No peer can write these files, but disks damage files, and a folder may come from anywhere. Every
damage must end in a report, and a body that was not stored must never be read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from proofs.hostile_parts.mutate import HEAD_SIZE
from proofs.hostile_parts.worker import Target
from sparq.broker.catalog import Catalog, CatalogError
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.migration import queues
from sparq.migration.queues import GoDataError
from sparq.migration.records import GoRecords
from sparq.protocol import batch
from sparq.protocol.batch import BatchError
from sparq.protocol.frames import BodySlices
from sparq.testing import ManualClock, MemoryDisk

FOLDER: Final = "/data/topics/t-clicks"
BODIES: Final = tuple(b"body number %d" % number * (1 + number % 3) for number in range(12))
CLOCK: Final = ManualClock()
_PAYLOAD_CHECKSUM_AT: Final = 24


def disk_with(path: str, data: bytes, disk: MemoryDisk | None = None) -> MemoryDisk:
    """A disk with this file; a new disk if none is given."""
    disk = MemoryDisk() if disk is None else disk
    folder = ""
    for part in path.split("/")[1:-1]:
        folder += f"/{part}"
        if not disk.exists(folder):
            disk.make_directory(folder)
    file = disk.create(path)
    file.append([data], 0)
    file.close()
    return disk


def open_log(disk: MemoryDisk) -> Log:
    """Open the log in `FOLDER`."""
    return Log.open(disk, FOLDER, node_id=7, options=LogOptions(), now=CLOCK.now())


def _written() -> tuple[str, bytes]:
    """Path and bytes of the only file of a log."""
    disk = MemoryDisk()
    disk.make_directory("/data")
    disk.make_directory("/data/topics")
    log = open_log(disk)
    for at in range(0, len(BODIES), 3):
        dues = [(1, CLOCK.now().wall_ns + 10**10)] if at == 3 else None
        commit = log.begin([BodySlices.of(BODIES[at : at + 3])], CLOCK.now(), dues, True)
        commit.run()
        log.finish(commit)
    log.close()
    (path,) = [path for path in disk.paths() if path.endswith(".log")]
    return path, bytes(disk.data(path))


LOG_PATH, LOG_BYTES = _written()


def recover_log(data: bytes) -> object:
    """Recover a log and read all of it: only written bodies, or a report of damage."""
    log = open_log(disk_with(LOG_PATH, data[HEAD_SIZE:]))
    found = 0
    index = log.next_stored(0)
    while index < log.written_end:
        block = log.block(index)
        if block is None:
            read = log.load(index)
            read.run()
            log.store(read)
            block = log.block(index)
        if block is not None:
            found += _known_bodies(bytes(block.slice(index, block.end)))
        index = log.next_stored(index if block is None else block.end)
    outcome = found, len(log.damage), log.torn_bytes > 0
    log.close()
    return outcome


def _known_bodies(frames: bytes) -> int:
    """Number of messages in these frames; each body must be one that was written."""
    at = count = 0
    while at < len(frames):
        (size,) = struct.unpack_from(">i", frames, at)
        assert frames[at + 34 : at + 4 + size] in BODIES, "a body was read that was never written"
        at += 4 + size
        count += 1
    return count


def walk(data: bytes) -> object:
    """Read a range as Spark's executors do: whole batches, or `BatchError`."""
    body = bytearray(data[HEAD_SIZE:])
    if data[:1] >= b"\x60":
        _seal(body)
    count = 0
    try:
        for found in batch.walk(body):
            count += found.count
    except BatchError as error:
        return count, str(error)[:12]
    return count


def _seal(body: bytearray) -> None:
    """Correct the payload checksum of the first batch, as a malicious peer can."""
    header = batch.parse_header(body, 0)
    if header is not None and len(body) >= _PAYLOAD_CHECKSUM_AT + 8:
        payload = body[header.header_size : header.total_size]
        struct.pack_into("<Q", body, _PAYLOAD_CHECKSUM_AT, xxh3_64_intdigest(payload))


def _ledger_bytes() -> tuple[str, bytes]:
    disk = disk_with(f"{FOLDER}/other", b"")
    ledger, _ = Ledger.open(disk, FOLDER)
    for name in ("c", "other"):
        ledger.created(name, 3)
        ledger.finished(name, [4, 9], [6, 12])
        ledger.flush()
        ledger.requeued(name, [7, 8], [10**18, 10**18], [2, 3])
        ledger.paused(name, flag=True)
        ledger.cursor(name, 12)
        ledger.kept(name, 5)
        ledger.mark(14)
        ledger.flush()
    ledger.close()
    (path,) = [path for path in disk.paths() if path.startswith(f"{FOLDER}/ledger")]
    return path, bytes(disk.data(path))


LEDGER_PATH, LEDGER_BYTES = _ledger_bytes()


def recover_ledger(data: bytes) -> object:
    """Recover a ledger: a state, and a report of damage."""
    state, damage = Ledger.read(disk_with(LEDGER_PATH, data[HEAD_SIZE:]), FOLDER)
    channels = state.channels.values()
    return len(damage), len(state.channels), sum(len(one.finished) for one in channels), state.mark


def load_facts(data: bytes) -> object:
    """Load `sparq.json`, the description of a data path: `CatalogError` if it is not valid."""
    catalog = Catalog(disk_with("/data/sparq.json", data[HEAD_SIZE:]), "/data", 1)
    try:
        catalog.load()
    except CatalogError as error:
        return str(error)[:30]
    return catalog.node_id


def _record(body: bytes, number: int) -> bytes:
    message = struct.pack(">qH", 1_763_000_000_000_000_000 + number, 1) + b"%016x" % number + body
    return struct.pack(">i", len(message)) + message


GO_RECORDS: Final = b"".join(_record(body, at) for at, body in enumerate(BODIES))
GO_PLACES: Final = b"%d\n0,0\n0,%d\n" % (len(BODIES), len(GO_RECORDS))
GO_TOPICS: Final = json.dumps(
    {
        "version": "1.3.0",
        "topics": [
            {"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]},
            {"name": "u", "paused": True, "channels": []},
        ],
    }
).encode()
_GO_FILES: Final = ("t.diskqueue.000000.dat", "t.diskqueue.meta.dat", "nsqd.dat")


def import_go(data: bytes) -> object:
    """A data path of Go's nsqd with one hostile file: records, bad bytes, or `GoDataError`."""
    parts = [GO_RECORDS, GO_PLACES, GO_TOPICS]
    parts[_go_kind(data[HEAD_SIZE:], data[0] if data else 0)] = data[HEAD_SIZE:]
    disk = MemoryDisk()
    for name, content in zip(_GO_FILES, parts, strict=True):
        disk_with(f"/go/{name}", content, disk)
    try:
        found = queues.survey(disk, "/go")
    except GoDataError as error:
        return str(error)[:20]
    counts: list[int] = []
    for queue in found.queues():
        pieces = queues.read_queue(disk, "/go", queue)
        counts += [len(piece) if isinstance(piece, GoRecords) else -1 for piece in pieces]
    return tuple(counts[:6]), len(found.topics)


def _go_kind(data: bytes, variant: int) -> int:
    """Place in `_GO_FILES` of the file that the data most likely came from, or any place."""
    if variant >= 240:
        return variant % 3
    return 2 if data[:1] == b"{" else 1 if len(data) < 60 else 0


def targets() -> Sequence[Target]:
    """All targets of this module."""
    at = LOG_BYTES.index(batch.MAGIC)
    one_batch = LOG_BYTES[at:]
    facts = (Catalog(MemoryDisk(), "/data", 5).facts(), b'{"format":2}', b"[]", b"[" * 60_000)
    return (
        Target("segments", 10, (LOG_BYTES, LOG_BYTES[:-40]), recover_log, (batch.MAGIC,)),
        Target("batches", 20, (one_batch, one_batch[:400]), walk, (batch.MAGIC,)),
        Target("ledgers", 20, (LEDGER_BYTES,), recover_ledger, (b"SPQL",)),
        Target("catalog", 5, facts, load_facts),
        Target("Go's queues", 6, (GO_RECORDS, GO_PLACES, GO_TOPICS), import_go),
    )
