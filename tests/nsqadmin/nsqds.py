"""Two nsqds in the test process, for nsqadmin's pages, API and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from sparq.daemon.access import tokens
from tests.nsqd import daemon
from tests.nsqd.daemon import Daemon


class Pair(Protocol):
    """What has two nsqds."""

    one: Daemon
    two: Daemon


@asynccontextmanager
async def two_nsqds(folder: Path, **options: Any) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Start two nsqds with these options, each with topic `t` and its channel `c`."""
    async with AsyncExitStack() as stack:
        nsqds = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            nsqd = await daemon.start(folder / name, broadcast_address="127.0.0.1", **options)
            stack.push_async_callback(daemon.stop, nsqd)
            await nsqd.post("/topic/create?topic=t")
            await nsqd.post("/channel/create?topic=t&channel=c")
            nsqds.append(nsqd)
        yield nsqds[0], nsqds[1]


async def fill(pair: Pair, count: int = 6, topic: str = "t") -> list[str]:
    """Publish alternately at both nodes; return the bodies in publishing order."""
    bodies = [f'{{"n": {number}}}' for number in range(count)]
    for number, body in enumerate(bodies):
        await (pair.one, pair.two)[number % 2].post(f"/pub?topic={topic}", body.encode())
    return bodies


def write_tokens(file: Path, roles: Mapping[str, str]) -> dict[str, str]:
    """Write a file with a token for each name and its roles; return the tokens by name."""
    made = {name: tokens.make(name, role) for name, role in roles.items()}
    file.write_text("\n".join(line for _, line in made.values()))
    return {name: token for name, (token, _) in made.items()}
