"""Wrong sizes, decompression bombs and floods use bounded memory (N-3, N-5, N-6)."""

import contextlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest
from cramjam import snappy

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.commands import COMMANDS, BodyKind, mpub, pub, sub
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser, LineTooLong
from tests.scenarios.security.attackers import (
    SECONDS,
    Growth,
    honest,
    introduced,
    raw,
    sized,
    until_closed,
    v2,
)
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import FRAME_ERROR, MAGIC, OK

MEBIBYTE = 1 << 20
LIMITS = IdentifyLimits(max_msg_size=1_000, max_body_size=5_000, max_line_size=4_096)
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
Shows = Callable[[str], None]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """An nsqd with a line limit of 4 KiB and otherwise NSQ's limits."""
    folder = tmp_path_factory.mktemp("nsqd")
    with spawn_nsqd(folder, "--max-line-size=4096") as server:
        with honest(server):  # one-time allocations happen before the measurements
            server.request("GET", "/stats?format=json")
        yield server


# N-3: sizes

BODIED = {name: kind.body for name, kind in COMMANDS.items() if kind.body is not BodyKind.NONE}
LINES = {b"DPUB": b"DPUB t 5\n", b"PUB": b"PUB t\n", b"MPUB": b"MPUB t\n"}
SIZES = (0, -1, -5, -(1 << 31), (1 << 31) - 1, 1 << 30, 5_001)


def line_of(name: bytes) -> bytes:
    return LINES.get(name, name + b"\n")


def wrong_sizes() -> Iterator[tuple[str, bytes]]:
    """Yield every command that has a body, with every invalid size."""
    for name, body in BODIED.items():
        for size in SIZES:
            yield f"{name.decode()} of {size}", sized(line_of(name), size)
        if body is BodyKind.MESSAGE:
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


def outcome(chunks: list[bytes]) -> str:
    """Return the error code that parsing these bytes gives."""
    parser = CommandParser(LIMITS)
    try:
        for chunk in chunks:
            parser.feed(chunk)
            while parser.next() is not None:
                pass
    except RemoteError as error:
        return error.code
    except LineTooLong:
        return "line too long"
    return "nothing"


@pytest.mark.security("N-3")
@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_size_is_refused_however_it_is_split(name: str) -> None:
    """An invalid size is refused once its last byte has arrived, however the bytes are split."""
    data = WRONG[name]
    cuts = range(len(data)) if len(data) < 100 else range(0, len(data), 97)
    ways = [[data[:at], data[at:]] for at in cuts]
    ways.append([data[at : at + 1] for at in range(len(data))])

    assert {outcome(way) for way in ways} <= {"E_BAD_BODY", "E_BAD_MESSAGE"}
    assert outcome([data[:-1]]) == "nothing"


@pytest.mark.security("N-3")
def test_the_length_of_a_line_is_limited() -> None:
    """With max-line-size 4096, a longer line is refused, however it is split."""
    for size, expected in ((4_095, "nothing"), (4_096, "line too long")):
        for step in (1, 100, 5_000):
            data = b"NOP" + b" " * (size - 3)
            assert expected == outcome([data[at : at + step] for at in range(0, size, step)])
    assert "nothing" == outcome([b"NOP" + b" " * 4_092 + b"\n"])


def try_all(server: NsqdServer) -> int:
    """Send the whole table, and valid sizes without the data; return the number of tries."""
    tried = 0
    for name, data in WRONG.items():
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                client = stack.enter_context(raw(server.tcp_port, MAGIC + data))
                tried += 1
            assert name in SMALL or client.frame()[0] == FRAME_ERROR
    for size in (1 << 20, 5 << 20):
        for line in (b"IDENTIFY\n", b"PUB t\n", b"MPUB t\n"):
            with raw(server.tcp_port, MAGIC + sized(line, size)) as announced:
                announced.send(struct.pack(">ii", 1, 1 << 20) + b"x" * 100)
                tried += 1
    return tried


@pytest.mark.timeout(300)
@pytest.mark.security("N-3")
def test_no_memory_is_allocated_for_invalid_sizes(nsqd: NsqdServer, shows: Shows) -> None:
    """nsqd grows by less than 8 MiB while all invalid sizes are sent to it."""
    try_all(nsqd)  # one-time allocations happen in this first pass
    growth = Growth(nsqd)
    with honest(nsqd):
        tried = try_all(nsqd)

    assert 8 > growth.mebibytes
    shows(f"sizes tried {tried} · RSS growth {growth.mebibytes:.1f} MiB (bound 8)")


# N-5: inflation


def bomb(data: bytes, count: int = 1) -> bytes:
    """Deflate the data `count` times: a full flush makes pieces that can be repeated."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(data) + deflater.flush(zlib.Z_FULL_FLUSH)) * count


LYING = {
    "claims 2 GiB": b"\x00\x0b\x00\x00" + bytes(4) + b"\x80\x80\x80\x80\x08" + b"\0a",
    "claims more than an int": b"\x00\x0b\x00\x00" + bytes(4) + b"\xff\xff\xff\xff\xff\xff\x01",
    "is 16 MiB": b"\x00\xff\xff\xff" + bytes(65_536),
    "skips 16 MiB": b"\xfe\xff\xff\xff" + bytes(65_536),
}


def drown(server: NsqdServer, kind: str, data: bytes) -> None:
    """Send data after an upgrade until nsqd closes the connection, which it must."""
    client, _ = introduced(server, **{kind: True})
    with client:
        with contextlib.suppress(OSError):
            client.send(data)
        until_closed([client])


@pytest.mark.timeout(300)
@pytest.mark.security("N-5")
def test_deflate_bombs_use_bounded_memory(nsqd: NsqdServer, shows: Shows) -> None:
    """1 MiB that inflates to 1 GiB, in a line or a body, ends the connection and costs < 16 MiB."""
    zeros = bomb(bytes(MEBIBYTE), 1024)
    body = bomb(sized(b"PUB t\n", 1 << 30)) + zeros
    growth = Growth(nsqd)
    with honest(nsqd):
        for data in (zeros, body):
            drown(nsqd, "deflate", data)

    assert 16 > growth.mebibytes
    size = len(zeros) / MEBIBYTE
    shows(f"bombs of {size:.1f} MiB for 1 GiB: 2 · RSS peak +{growth.mebibytes:.1f} MiB (bound 16)")


@pytest.mark.security("N-5")
@pytest.mark.parametrize("lie", [name for name in LYING if not name.startswith("skips")])
def test_false_snappy_sizes_use_bounded_memory(nsqd: NsqdServer, lie: str) -> None:
    """A false chunk size ends a snappy connection before memory is allocated for it."""
    growth = Growth(nsqd)
    drown(nsqd, "snappy", IDENTIFIER + LYING[lie])

    assert 16 > growth.mebibytes


@pytest.mark.security("N-5")
def test_skippable_snappy_chunks_are_not_kept(nsqd: NsqdServer) -> None:
    """Skippable snappy chunks of up to 16 MiB are not kept in memory."""
    client, _ = introduced(nsqd, snappy=True)
    growth = Growth(nsqd)
    with client:
        assert b"OK" in client.receive_some()  # the OK is compressed
        client.send(IDENTIFIER + (b"\xfe\xff\xff\xff" + bytes((1 << 24) - 1)) * 4)
        client.send(bytes(snappy.compress(pub("padded", b"x")))[len(IDENTIFIER) :])
        answer = client.receive_some()

    assert b"OK" in answer
    assert 16 > growth.mebibytes


# N-6: floods

FLOODS = {
    "NOPs": b"NOP\n" * 4_000_000,
    "PUBs": pub("flood#ephemeral", b"x" * 200) * 1_000_000,
    "MPUBs": mpub("flood#ephemeral", [b"x" * 1_000] * 1_000) * 200,
    "wrong FINs": sub("flood#ephemeral", "c#ephemeral") + commands.fin(b"0" * 16) * 5_000_000,
}


@pytest.mark.timeout(300)
@pytest.mark.security("N-6")
@pytest.mark.parametrize("flood", FLOODS)
def test_a_client_that_does_not_read_is_paused(nsqd: NsqdServer, flood: str, shows: Shows) -> None:
    """A client that sends and does not read is paused: memory is bounded, others are served."""
    growth = Growth(nsqd)
    data = memoryview(FLOODS[flood])
    with honest(nsqd) as somebody, v2(nsqd) as client:
        client.socket.settimeout(2)
        before = somebody.count
        with contextlib.suppress(OSError):
            while data:
                data = data[client.socket.send(data[:MEBIBYTE]) :]
        served = somebody.count - before
    taken = (len(FLOODS[flood]) - len(data)) / MEBIBYTE

    assert 128 > growth.mebibytes
    megabytes = f"{taken:.0f} MiB of {flood}"
    shows(f"{megabytes}: RSS +{growth.mebibytes:.1f} MiB (bound 128), others: {served:,} OKs")


@pytest.mark.security("N-6")
def test_a_paused_client_gets_every_answer_once_it_reads(nsqd: NsqdServer) -> None:
    """A client that was paused gets an answer to every command once it reads again."""
    count = 200_000
    with v2(nsqd) as client:
        client.socket.settimeout(0.5)
        data = memoryview(pub("again#ephemeral", b"x") * count)
        with contextlib.suppress(TimeoutError):
            while data:
                data = data[client.socket.send(data[:65_536]) :]
        for _ in range(count):
            if data:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    data = data[client.socket.send(data[:65_536]) :]
                client.socket.settimeout(SECONDS)
            assert client.frame() == OK
