"""client.range_reader: reading ranges over a blocking connection, from a simulated nsqd."""

import contextlib
import signal
import socket
import threading

import pytest

from sparq.client.blocking import connection
from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import WrongPeerError
from sparq.client.range_reader import NoRangesError, RangeReader
from sparq.protocol import batch, commands
from sparq.protocol.errors import RemoteError
from tests.spark.range_server import RangeServer


@pytest.fixture
def server():
    with RangeServer() as running:
        yield running


@pytest.fixture
def reader(server):
    reader = RangeReader(server.address)
    yield reader
    reader.close()


def bodies_of(pieces) -> list[bytes]:
    return [
        bytes(stored.frames[:end][34:])
        for piece in pieces
        for stored in batch.walk(piece.batches)
        for end in stored.ends.tolist()[:1]
    ]


def test_attach_ends_and_commit_return_and_set_positions(server, reader):
    """ATTACH returns epoch, channel position and the log's ends; COMMIT uses that epoch."""
    server.add([b"a", b"b", b"c"])

    attached = reader.attach("clicks", "archive")
    reader.commit("clicks", "archive", attached.epoch, 2)

    assert (101, 0, 0) == (attached.epoch, attached.committed, attached.committed_ordinal)
    assert (server.log, 7, 0, 3, 0, 3) == attached.ends
    assert 2 == server.committed
    assert attached.ends == reader.ends("clicks")


def test_ends_finds_an_index_by_count_publish_time_or_size(server, reader):
    """ENDS finds the index N messages or bytes after another one, or at a publish time.

    An nsqd that is too old for sizes raises NoRangesError.
    """
    server.add([b"a", b"b", b"c"])
    server.add([b"d"], gap=10)

    after, within = reader.place_after("clicks", 1, 2), reader.place_within("clicks", 1, 5)

    assert (13, 3, 1) == (after.at, after.at_ordinal, after.from_ordinal)
    assert 14 == reader.place_at_time("clicks", 5).at
    assert (3, 3, 1) == (within.at, within.at_ordinal, within.from_ordinal)
    assert within.size == server.size_of(0)
    server.ranges = 1
    reader.close()
    with pytest.raises(NoRangesError, match="too old to report the sizes of ranges"):
        reader.place_within("clicks", 1, 5)


def test_each_read_begins_where_the_previous_answer_ended(server, reader):
    """A range is read completely; each READ begins where the previous answer ended."""
    for number in range(5):
        server.add([b"%d" % number], gap=3)

    pieces = reader.read("clicks", server.log, 0, 20, max_bytes=99)
    bodies = [body for piece in pieces for body in bodies_of([piece])]

    assert [b"0", b"1", b"2", b"3", b"4"] == bodies
    reads = [heard for heard in server.heard if isinstance(heard, commands.Read)]
    assert [(0, 20), (11, 20), (19, 20)] == [(read.first, read.end) for read in reads]
    assert {99} == {read.max_bytes for read in reads}


def test_after_an_iteration_closed_early_the_next_request_gets_its_answer(server, reader):
    """After an iteration that is closed early, the next request gets its own answer."""
    for number in range(6):
        server.add([b"%d" % number])
    pieces = reader.read("clicks", server.log, 0, 6)
    next(pieces)
    pieces.close()

    assert 6 == reader.ends("clicks").end


@contextlib.contextmanager
def interrupted():
    """Raise KeyboardInterrupt after 0.1 s, as Ctrl-C does."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_after_an_interrupted_iteration_the_next_request_gets_its_own_answer(server, reader):
    """After Ctrl-C while a piece is awaited, the next request gets its own answer."""
    go_on, answer = threading.Event(), server._read

    def late(command):
        if command.first:
            go_on.wait(30)
        return answer(command)

    for number in range(6):
        server.add([b"%d" % number])
    server._read = late
    pieces = reader.read("clicks", server.log, 0, 6)
    next(pieces)
    with interrupted():
        next(pieces)
    go_on.set()

    assert 6 == reader.ends("clicks").end


def test_a_refusal_leaves_the_connection_in_use(server, reader):
    """E_RANGE_FAILED does not end the connection: the next request uses it."""
    with pytest.raises(RemoteError, match="is not"):
        list(reader.read("clicks", "cd" * 16, 0, 1))
    reader.ends("clicks")

    assert 1 == sum(isinstance(heard, commands.Identify) for heard in server.heard)


def test_after_a_broken_connection_the_next_request_connects_again(server, reader):
    """A broken connection raises OSError once; the next request connects again."""
    reader.ends("clicks")
    server.hang_up_after["ReadEnds"] = 0

    with pytest.raises(OSError, match=server.address):
        reader.ends("clicks")

    assert 0 == reader.ends("clicks").end


def test_an_nsqd_without_ranges_is_named():
    """An nsqd without ranges, such as Go's, raises NoRangesError with its address and version."""
    with RangeServer(ranges=0) as plain:
        with pytest.raises(NoRangesError, match=rf"{plain.address} \(version 1.3.0\)"):
            RangeReader(plain.address).ends("clicks")

        assert ["Identify"] == [type(heard).__name__ for heard in plain.heard]


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"{host}:{port}"


def answering(*answers: bytes) -> str:
    """Start a server that sends one answer per read and then closes; return its address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, contextlib.suppress(OSError), listening.accept()[0] as connection:
            for answer in answers:
                connection.recv(1000)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return address_of(listening)


def test_an_answer_without_the_requested_fields_raises(server, reader, monkeypatch):
    """An answer without the requested fields is a WrongPeerError: retrying is useless."""
    monkeypatch.setattr(server, "_ends_object", lambda: {"log": server.log})

    with pytest.raises(WrongPeerError, match="'node'"):
        reader.ends("clicks")


def test_heartbeats_are_answered(server):
    """A heartbeat between request and answer gets a NOP and is not taken for the answer."""
    connection = BlockingConnection(server.address)
    answer = server._readends

    def with_heartbeat(command):
        from sparq.protocol import layout

        return layout.response(b"_heartbeat_") + answer(command)

    server._readends = with_heartbeat
    server._nop = lambda _: b""

    assert server.log == connection.ask_json(commands.ends("clicks"))["log"]
    assert 0 == int(connection.ask_json(commands.ends("clicks"))["end"])
    assert "Nop" in [type(heard).__name__ for heard in server.heard]
    connection.close()


def test_an_error_sent_before_the_whole_command_was_read_is_raised():
    """If nsqd refuses a 64 MiB command after its first bytes, its error is raised."""
    refusal = b"\0\0\0\x16\0\0\0\x01E_BAD_BODY too big"
    connection = BlockingConnection(answering(b"\0\0\0\x06\0\0\0\0{}", refusal))

    with pytest.raises(RemoteError, match="E_BAD_BODY too big"):
        connection.ask(bytes(64 << 20))


def test_a_peer_that_sends_nothing_raises_timeout_error(monkeypatch):
    """A peer that accepts and sends nothing raises TimeoutError after timeout_seconds."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(TimeoutError),
    ):
        BlockingConnection(address_of(listening), timeout_seconds=0.05)


def test_a_range_that_does_not_advance_is_an_error(server, reader):
    """An answer whose next index does not advance raises WrongPeerError: no endless loop."""
    server.add([b"a"])
    server._read = lambda _: b"\0\0\0\x14\0\0\0\x03" + bytes(16)

    with pytest.raises(WrongPeerError, match="from 0 to 1 with the next index 0"):
        list(reader.read("clicks", server.log, 0, 1))


def test_frames_are_bounded(server, monkeypatch):
    """A frame above FRAME_BYTES_MAX raises WrongPeerError."""
    monkeypatch.setattr(connection, "FRAME_BYTES_MAX", 50)

    with pytest.raises(WrongPeerError, match="range 4 to 50"):
        BlockingConnection(server.address)
