"""client.blocking.connection over TLS and compression: misbehaving peers, and reused memory.

A thread runs `Counterpart` as the nsqd. `tests/scenarios/tls` tests the cases without errors.
"""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import WrongPeerError
from sparq.protocol import commands
from sparq.wire.layer_options import LayerOptions
from tests.client.certificates import Certificates, certificates, server_context
from tests.client.counterpart import Counterpart, frame

ALL = {"tls_v1": True, "snappy": True, "deflate": True}
KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "tls+snappy": {"tls_v1": True, "snappy": True},
    "tls+deflate": {"tls_v1": True, "deflate": True},
}
Answer = Callable[[Counterpart, socket.socket], None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))


def options_of(files: Certificates, kind: str) -> LayerOptions:
    """Layer options of one of `KINDS`; with TLS, they trust the tests' authority."""
    trusted = {"tls_root_ca_file": str(files.authority)} if "tls" in kind else {}
    return LayerOptions(**KINDS[kind], **trusted)


@contextlib.contextmanager
def serving(counterpart: Counterpart, answers: list[Answer]) -> Iterator[str]:
    """A listener for one connection: it does the handshake, then answers each command."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            answered = 0
            while data := connection.recv(1 << 16):
                connection.sendall(counterpart.receive(data))
                # `received` has one more entry than `answers`: the counterpart itself has answered
                # IDENTIFY.
                while answered < min(len(answers), len(counterpart.received) - 1):
                    answers[answered](counterpart, connection)
                    answered += 1

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        thread.join()


def sends(data: bytes) -> Answer:
    """Return an answer that sends `data` through the layers."""

    def answer(counterpart: Counterpart, connection: socket.socket) -> None:
        counterpart.send(data)
        sealed, counterpart._out = counterpart._out, b""
        connection.sendall(sealed)

    return answer


def counterpart_of(files: Certificates) -> Counterpart:
    """A counterpart that offers TLS, Snappy and Deflate."""
    return Counterpart(dict(ALL), server_context(files))


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_reuses_the_memory_of_the_previous_one(files: Certificates, kind: str) -> None:
    """Large and small answers arrive whole, and each one reuses the previous one's memory."""
    bodies = [b"a" * 5_000_000, b"b" * 3_000_000, b"c"]
    answers = [sends(frame(3, body)) for body in bodies]
    with serving(counterpart_of(files), answers) as address:
        connection = BlockingConnection(address, layers=options_of(files, kind))
        received = []
        for body in bodies:
            connection.send(commands.ends("t"))
            kind_of_frame, data = connection.receive()
            assert kind_of_frame == 3
            assert bytes(data) == body
            received.append(data)
        connection.close()

    assert received[0][:1] == received[1][:1] == b"c"


@pytest.mark.parametrize("kind", ["tls", "snappy", "tls+deflate"])
def test_damaged_data_is_an_os_error(files: Certificates, kind: str) -> None:
    """Damaged data raises OSError, like a broken connection, so that callers retry it."""

    def damaged(counterpart: Counterpart, connection: socket.socket) -> None:
        counterpart.send(frame(0, b"important" * 1000))
        sealed = bytearray(counterpart._out)
        sealed[len(sealed) // 2] ^= 1
        connection.sendall(sealed)

    with serving(counterpart_of(files), [damaged]) as address:
        connection = BlockingConnection(address, layers=options_of(files, kind))
        with pytest.raises(OSError, match=f"{address}: ({kind}|TLS)"):
            connection.ask(commands.ends("t"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_command_closes_the_connection(files: Certificates, kind: str) -> None:
    """After Ctrl-C while an answer is awaited, the connection is closed: no command gets it."""
    with serving(counterpart_of(files), []) as address:
        connection = BlockingConnection(address, layers=options_of(files, kind))
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            connection.ask(commands.ends("t"))
        signal.signal(signal.SIGALRM, previous)

        with pytest.raises(OSError, match="Bad file descriptor"):
            connection.ask(commands.ends("t"))


@pytest.mark.parametrize("kind", ["tls", "tls+snappy"])
def test_a_tls_close_notify_ends_the_connection(files: Certificates, kind: str) -> None:
    """After a TLS close_notify, ``ask`` fails immediately, even if the socket is still open."""

    def close_notify(counterpart: Counterpart, connection: socket.socket) -> None:
        connection.sendall(counterpart.close_tls())

    with serving(counterpart_of(files), [close_notify]) as address:
        connection = BlockingConnection(address, layers=options_of(files, kind))
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            connection.ask(commands.ends("t"))


def test_a_failed_handshake_raises_an_error_with_the_reason(files: Certificates) -> None:
    """A hang-up and unrequested bytes fail the handshake with errors."""

    class DisconnectsAfterIdentify(Counterpart):
        """A counterpart that answers IDENTIFY and then disconnects."""

        def receive(self, data: bytes) -> bytes:
            if self.received:
                raise ConnectionAbortedError
            return super().receive(data)

    context = server_context(files)
    with (
        serving(DisconnectsAfterIdentify(dict(ALL), context), []) as address,
        pytest.raises(ConnectionResetError, match=r"\(TLS\)|reset"),
    ):
        BlockingConnection(address, layers=options_of(files, "tls"))

    early: Any = Counterpart({})
    early.after_identify = frame(0, b"OK")
    with serving(early, []) as address, pytest.raises(WrongPeerError, match="before any request"):
        BlockingConnection(address)
