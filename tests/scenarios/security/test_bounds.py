"""Wrong sizes, decompression bombs and floods use bounded memory (N-3, N-5, N-6)."""

import contextlib
import re
import struct
import time
import zlib
from collections.abc import Iterator

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.commands import COMMANDS, pub, sub
from tests.scenarios.security.attackers import (
    Growth,
    honest,
    introduced,
    raw,
    sized,
    until_closed,
    v2,
)
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import FRAME_ERROR, MAGIC

MEBIBYTE = 1 << 20
LIMITS = IdentifyLimits(max_msg_size=1_000, max_body_size=5_000, max_line_size=4_096)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """An nsqd with a line limit of 4 KiB and otherwise NSQ's limits."""
    folder = tmp_path_factory.mktemp("nsqd")
    with spawn_nsqd(folder, "--max-line-size=4096") as server:
        with honest(server):  # one-time allocations happen before the measurements
            server.request("GET", "/stats?format=json")
        yield server


# N-3: sizes

BODIED = [name for name, kind in COMMANDS.items() if kind.has_body]
LINES = {b"DPUB": b"DPUB t 5\n", b"PUB": b"PUB t\n", b"MPUB": b"MPUB t\n"}
SIZES = (0, -1, -5, -(1 << 31), (1 << 31) - 1, 1 << 30, 5_001)


def line_of(name: bytes) -> bytes:
    return LINES.get(name, name + b"\n")


def wrong_sizes() -> Iterator[tuple[str, bytes]]:
    """Yield every command that has a body, with every invalid size."""
    for name in BODIED:
        for size in SIZES:
            yield f"{name.decode()} of {size}", sized(line_of(name), size)
        if name in (b"PUB", b"DPUB"):
            yield f"{name.decode()} of one more", sized(line_of(name), LIMITS.max_msg_size + 1)
    for count in (0, -1, -(1 << 31), (1 << 31) - 1, 1_000):  # of 5,000 bytes, 999 messages fit
        yield f"MPUB with {count} messages", b"MPUB t\n" + struct.pack(">ii", 4_999, count)
    for size in (0, -1, 1_001, (1 << 31) - 1):
        yield f"MPUB with one of {size}", b"MPUB t\n" + struct.pack(">iii", 4_999, 2, size)
    full = struct.pack(">i", 1_000) + bytes(1_000)
    begun = full * 4 + full[:4]
    yield "MPUB with too many", b"MPUB t\n" + struct.pack(">ii", 4_999, 6) + begun


WRONG = dict(wrong_sizes())
SMALL = {name for name in WRONG if re.search(r"one more|5001|1001|with 1000|too many", name)}
"""Invalid only with the small limits of this table."""


def try_all(server: NsqdServer) -> None:
    """Send the whole table, and valid sizes without the data."""
    for name, data in WRONG.items():
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                client = stack.enter_context(raw(server.tcp_port, MAGIC + data))
            assert name in SMALL or client.frame()[0] == FRAME_ERROR
    for size in (1 << 20, 5 << 20):
        for line in (b"IDENTIFY\n", b"PUB t\n", b"MPUB t\n"):
            with raw(server.tcp_port, MAGIC + sized(line, size)) as announced:
                announced.send(struct.pack(">ii", 1, 1 << 20) + b"x" * 100)


@pytest.mark.timeout(300)
def test_no_memory_is_allocated_for_invalid_sizes(nsqd: NsqdServer) -> None:
    """nsqd grows by less than 8 MiB while all invalid sizes are sent to it."""
    try_all(nsqd)  # one-time allocations happen in this first pass
    growth = Growth(nsqd)
    with honest(nsqd):
        try_all(nsqd)

    assert 8 > growth.mebibytes


# N-5: inflation


def bomb(data: bytes, count: int = 1) -> bytes:
    """Deflate the data `count` times: a full flush makes pieces that can be repeated."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(data) + deflater.flush(zlib.Z_FULL_FLUSH)) * count


def drown(server: NsqdServer, kind: str, data: bytes) -> None:
    """Send data after an upgrade until nsqd closes the connection, which it must."""
    client, _ = introduced(server, **{kind: True})
    with client:
        with contextlib.suppress(OSError):
            client.send(data)
        until_closed([client])


@pytest.mark.timeout(300)
def test_deflate_bombs_use_bounded_memory(nsqd: NsqdServer) -> None:
    """1 MiB that inflates to 1 GiB, in a line or a body, ends the connection and costs < 16 MiB."""
    zeros = bomb(bytes(MEBIBYTE), 1024)
    body = bomb(sized(b"PUB t\n", 1 << 30)) + zeros
    growth = Growth(nsqd)
    with honest(nsqd):
        for data in (zeros, body):
            drown(nsqd, "deflate", data)

    assert 16 > growth.mebibytes


@pytest.mark.timeout(300)
def test_a_compressed_flood_of_commands_does_not_block_http(nsqd: NsqdServer) -> None:
    """25 million NOPs in 100 KiB are executed in parts; HTTP requests are answered in between."""
    growth = Growth(nsqd)
    client, _ = introduced(nsqd, deflate=True)
    with client:
        client.send(bomb(b"NOP\n" * 250_000, 100))
        for _ in range(20):
            began = time.monotonic()
            assert (200, b"OK") == nsqd.request("GET", "/ping")
            # Executing a whole MiB of commands in one turn would already take longer.
            assert 10.0 > time.monotonic() - began

    assert 16 > growth.mebibytes


# N-6: floods

FLOODS = {
    "PUBs": pub("flood#ephemeral", b"x" * 200) * 1_000_000,
    "wrong FINs": sub("flood#ephemeral", "c#ephemeral") + commands.fin(b"0" * 16) * 5_000_000,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS)
def test_a_client_that_does_not_read_is_paused(nsqd: NsqdServer, flood: str) -> None:
    """A client that sends and does not read is paused: memory is bounded, others are served."""
    growth = Growth(nsqd)
    data = memoryview(FLOODS[flood])
    with honest(nsqd), v2(nsqd) as client:
        client.socket.settimeout(1)
        with contextlib.suppress(OSError):
            while data:
                data = data[client.socket.send(data[:MEBIBYTE]) :]

    assert 128 > growth.mebibytes
