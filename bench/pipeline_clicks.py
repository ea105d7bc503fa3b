"""The clicks of the pipeline's bench: lines in order of time, in files, in Parquet, on nsqds.

1. `day_file` is the generator's day of a site, with its planted robots, for measuring speed. A
   separate process makes it, so that its memory is free again when Spark starts.
2. `Crowd` is an even stream from a chosen number of visitors at a chosen rate in event time, for
   measuring state and memory, and as the crowd around robots. No rule flags a visitor of a crowd.
3. Both are deterministic: they depend only on their arguments.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparq.client import Producer
from sparq.demo import website
from sparq.demo.generator import DAY, generate

TOPIC = "clicks"
FILES = 4
ROW_GROUP = 100_000
PAGES = 2_000
PAGE_STEP = 7_919
"""A prime, so that neighbouring clicks request pages far apart, and every page is requested."""

PAGE_EVERY = 4
"""Every fourth click of a visitor requests a page, the others request parts of a page."""

JSON_EVERY = 5
"""Every fifth line is JSON, the others are in the combined format."""

BATCH = 500
UNDER_WAY = 8
PUBLISH_SECONDS = 60.0

# The columns of the source `nsq`.
SCHEMA = pa.schema(
    [
        ("nsqd", pa.string()),
        ("id", pa.string()),
        ("index", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("body", pa.binary()),
    ]
)


def day_file(folder: Path, size: int, seed: int = 1) -> Path:
    """A file with a generated day, one click per line; made only if it does not exist."""
    path = folder / f"day-{seed}-{size}.log"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=_write_day, args=(path, size, seed), daemon=True)
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"generating {size:,} clicks failed: status {process.exitcode}")
    return path


def _write_day(path: Path, size: int, seed: int) -> None:
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        file.writelines(line + b"\n" for line in generate(size, seed).lines)
    draft.replace(path)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, without their newlines."""
    with path.open("rb") as file:
        for text in file:
            yield text.rstrip(b"\n")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Visitors who click in turn: each clicks once before the first clicks again.

    The first click of each visitor requests a page, so every visitor has a visit with a page.

    Attributes:
        visitors: number of visitors.
        per_second: clicks per second of event time.
        start: event time of the first click.
    """

    visitors: int
    per_second: int
    start: datetime = DAY

    def lines(self, size: int, first: int = 0) -> Iterator[bytes]:
        """`size` clicks, from number `first` on."""
        for number in range(first, first + size):
            at = self.start + timedelta(seconds=number // self.per_second)
            yield line(number, number % self.visitors, at, self._path(number))

    def _path(self, number: int) -> str:
        turn, visitor = divmod(number, self.visitors)
        part = number * PAGE_STEP % PAGES
        is_page = not turn or not (turn + visitor) % PAGE_EVERY
        return f"/articles/{part}" if is_page else f"/static/part-{part}.css"


def address(visitor: int) -> str:
    """The address of a visitor; there are 16 million different ones."""
    return f"10.{visitor >> 16 & 255}.{visitor >> 8 & 255}.{visitor & 255}"


def line(number: int, visitor: int, at: datetime, path: str) -> bytes:
    """One click; its number determines whether it is JSON or in the combined format."""
    agent = website.BROWSERS[visitor % len(website.BROWSERS)]
    size = 300 + number % 40_000
    if number % JSON_EVERY:
        text = f'{address(visitor)} - - [{_written(at)}] "GET {path} HTTP/1.1" 200 {size}'
        return f'{text} "-" "{agent}"'.encode()
    return _json(visitor, at.isoformat(timespec="seconds"), path, size, agent)


def as_json(number: int, *, odd: bool = False) -> bytes:
    """A JSON click; an odd one has an escaped quote in its agent and its time as a float."""
    at, agent = DAY + timedelta(seconds=number // 100), website.BROWSERS[number % 5]
    time = at.timestamp() + 0.25 if odd else at.isoformat(timespec="seconds")
    agent = f'{agent} "quoted"' if odd else agent
    return _json(number % 5_000, time, f"/articles/{number % PAGES}", number % 40_000, agent)


def _json(visitor: int, time: str | float, path: str, size: int, agent: str) -> bytes:
    fields = {
        "time": time,
        "remote_addr": address(visitor),
        "request": f"GET {path} HTTP/2.0",
        "status": 200,
        "body_bytes_sent": size,
        "http_referer": "-",
        "http_user_agent": agent,
    }
    return json.dumps(fields).encode()


@lru_cache(maxsize=16)
def _written(at: datetime) -> str:
    return at.strftime("%d/%b/%Y:%H:%M:%S +0000")


def write_parquet(lines: Iterable[bytes], size: int, folder: Path) -> None:
    """Write the first `size` lines as messages to FILES files, in order."""
    folder.mkdir(parents=True)
    rest, index = iter(lines), 0
    for number in range(FILES):
        end = size * (number + 1) // FILES
        with pq.ParquetWriter(folder / f"part-{number}.parquet", SCHEMA) as writer:
            while index < end:
                bodies = list(islice(rest, min(ROW_GROUP, end - index)))
                if not bodies:
                    raise ValueError(f"there are {index:,} lines, not {size:,}")
                writer.write_table(_messages(bodies, index))
                index += len(bodies)


def _messages(bodies: list[bytes], first: int) -> pa.Table:
    indexes = range(first, first + len(bodies))
    columns = {
        "nsqd": ["bench"] * len(bodies),
        "id": [f"{index:016x}" for index in indexes],
        "index": list(indexes),
        "timestamp": [datetime.now(UTC)] * len(bodies),
        "body": bodies,
    }
    return pa.table(columns, schema=SCHEMA)


def publish(lines: Iterable[bytes], nsqds: list[str]) -> int:
    """Publish lines to nsqds (TCP addresses); return their number when all are acknowledged."""
    return asyncio.run(_publish(lines, nsqds))


async def _publish(lines: Iterable[bytes], nsqds: list[str]) -> int:
    rest, total = iter(lines), 0
    under_way: set[asyncio.Task[object]] = set()
    async with Producer(nsqds, publish_timeout=PUBLISH_SECONDS) as producer:
        while batch := list(islice(rest, BATCH)):
            under_way.add(asyncio.create_task(producer.multi_publish(TOPIC, batch)))
            total += len(batch)
            if len(under_way) >= UNDER_WAY:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*under_way)
    return total


def publish_at_once(bodies: list[bytes], nsqd: str) -> None:
    """Publish bodies as one MPUB, so that one batch of Spark contains all of them."""
    asyncio.run(_publish_at_once(bodies, nsqd))


async def _publish_at_once(bodies: list[bytes], nsqd: str) -> None:
    async with Producer([nsqd], publish_timeout=PUBLISH_SECONDS) as producer:
        await producer.multi_publish(TOPIC, bodies)
