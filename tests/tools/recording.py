"""nsq_to_file in the test's process, and the files that it has written."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from sparq.tools.nsq_to_file import PROGRAM, Archive, Options, check
from tests.support.servers import NsqdServer
from tests.support.tool_options import parse
from tests.support.waiting import until

SLOW = "--sync-interval=1h"
SECONDS = 60.0


def archive(*flags: str) -> Archive:
    """Return the archive that these flags describe."""
    options = parse(Options, PROGRAM, flags)
    check(options)
    return Archive(options)


@asynccontextmanager
async def recording(*flags: str) -> AsyncIterator[Archive]:
    """Record in this process until the block ends; then stop, and assert exit status 0."""
    made, stop = archive(*flags), asyncio.Event()
    running = asyncio.create_task(made.run(stop))
    try:
        yield made
    finally:
        stop.set()
        status = await running
    assert 0 == status


def publish(nsqd: NsqdServer, topic: str, bodies: Iterable[bytes]) -> None:
    """Publish messages, which must not contain newlines."""
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies))


def finished(nsqd: NsqdServer, topic: str, channel: str = PROGRAM) -> int:
    """Return the number of messages finished since the channel was created."""
    return int(nsqd.channel(topic, channel).get("finish_count", 0))


async def until_finished(nsqd: NsqdServer, topic: str, count: int, channel: str = PROGRAM) -> None:
    """Wait until at least `count` messages are finished."""
    await until(lambda: finished(nsqd, topic, channel) >= count, SECONDS)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, unpacked up to an incomplete gzip member."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): content(path) for path in paths}


def content(path: Path) -> bytes:
    """Return the content of a file, unpacked up to an incomplete gzip member."""
    data = path.read_bytes()
    return b"".join(members(data)) if path.suffix == ".gz" else data


def members(data: bytes) -> list[bytes]:
    """Return the complete members of a gzip file; a kill may have cut the last one."""
    found = []
    while data:
        member = zlib.decompressobj(wbits=31)
        unpacked = member.decompress(data)
        if not member.eof:
            break
        found.append(unpacked)
        data = member.unused_data
    return found


def lines(folder: Path) -> list[bytes]:
    """Return all lines of all files."""
    return [line for data in files(folder).values() for line in data.split(b"\n")[:-1]]


def is_gzip(path: Path) -> bool:
    """Whether the file is valid gzip to its end."""
    try:
        gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        return False
    return True


def flags(nsqd: NsqdServer, topic: str, folder: Path) -> list[str]:
    """Return the flags that every run needs."""
    return [f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={topic}", f"--output-dir={folder}"]
