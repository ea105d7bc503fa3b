"""S-1: no name leads outside the data path, and no two names share a folder."""

from __future__ import annotations

import http.client
import socket
import struct
from pathlib import Path
from urllib.parse import quote

from sparq.protocol import commands
from sparq.protocol.names import topic_of_directory
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import V2Client

NASTY = [
    *(".", "..", "...", "....", ".a", "a.", "-", "_", "__", "--", "CON", "con", "NUL", "aux.txt"),
    *("a#ephemeral", "..#ephemeral", "#ephemeral", "a#ephemeral#ephemeral", "a#Ephemeral", "#"),
    *("A", "a", "_a", "_A", "aB", "Ab", "AB", "ab", "a_b", "A_B", "t-a", "T-a", "ledger", "trash"),
    *("x" * 64, "X" * 64, "x" * 65, "x" * 54 + "#ephemeral", "x" * 55 + "#ephemeral", ""),
    *("a\r\nb", "a\n", "a\0b", "a/b", "/", "/etc", "../x", "..\\x", "a\\b", "~", "~root", "$HOME"),
    *(
        "%2e%2e",
        "%2e%2e%2fx",
        "%00",
        "..%2f..",
        "..%c0%af",
        "é",
        "\uff41",
        "a\u202eb",
        "\ud800",
        " ",
        "*",
    ),
]


def say(server: NsqdServer, data: bytes) -> bytes:
    """Send data on a new connection; return all answers."""
    with V2Client(server, seconds=30) as client:
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        return client.rest()


def post(server: NsqdServer, path: str, body: bytes = b"x") -> int:
    """POST to exactly this target; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        connection.putrequest("POST", path, skip_accept_encoding=True)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def tree(folder: Path, besides: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, except those in `besides`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if not path.is_relative_to(besides)
    }


def test_a_real_nsqd_stays_in_its_data_path(tmp_path: Path) -> None:
    """Malicious names over TCP and HTTP, raw and escaped, change no file outside the data path."""
    for beside in ("t-a", "x", "trash", "topics"):
        (tmp_path / beside).mkdir()
        (tmp_path / beside / "file").write_bytes(b"precious")
    with spawn_nsqd(tmp_path) as server:
        data = tmp_path / "nsqd"
        before = tree(tmp_path, data)
        for name in NASTY:
            raw = name.encode("utf-8", "surrogatepass")
            say(server, b"PUB %s\n%sx" % (raw, struct.pack(">i", 1)))
            say(server, b"SUB %s %s\n" % (raw, raw))
            escaped = quote(raw, safe="")
            for target in {escaped, quote(escaped, safe=""), escaped.replace(".", "%2e")}:
                for action in ("pub", "topic/create", "topic/empty", "topic/pause", "topic/delete"):
                    post(server, f"/{action}?topic={target}")
                for action in ("create", "delete"):
                    post(server, f"/channel/{action}?topic={target}&channel={target}")
        assert b"OK" in say(server, commands.pub("after", b"x"))
        assert before == tree(tmp_path, data)
        tops = {path.name for path in (data / "topics").iterdir()}
        assert all(topic_of_directory(name) is not None for name in tops)
        assert not any(path.is_symlink() for path in data.rglob("*"))
