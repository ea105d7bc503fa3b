"""S-1: no name leads outside the data path, and no two names share a folder."""

from __future__ import annotations

import http.client
import posixpath
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sparq.protocol import commands
from sparq.protocol.names import directory_name, is_valid_name, topic_of_directory
from sparq.testing import MemoryDisk
from tests.broker.harness import PATH, BrokerHarness
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import V2Client

NAMES = 10_000
TOPICS = 600
SEED = 20_261_121

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
LEGAL = "abcxyzABCXYZ019._-"
ILLEGAL = "/\\\0\r\n \t%~$*?:|<>\"'é\u202e\x7f#"


def names(count: int, chance: random.Random) -> list[str]:
    """Return the malicious names, then random ones: legal, nearly legal, of any length."""
    found = dict.fromkeys(NASTY)
    while len(found) < count:
        size = chance.choice((1, 2, 3, 8, 63, 64, 65, 200))
        letters = LEGAL if chance.random() < 0.7 else LEGAL + ILLEGAL
        tail = chance.choice(("", "", "", "#ephemeral", "/..", "/../x"))
        found["".join(chance.choices(letters, k=size)) + tail] = None
    return list(found)


class Watched(MemoryDisk):
    """A disk that records every path it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def step(self, operation: str, path: str) -> None:
        self.seen.add(path)
        super().step(operation, path)

    def rename(self, old: str, new: str) -> None:
        self.seen |= {old, new}
        super().rename(old, new)


def strays(paths: set[str]) -> list[str]:
    """Return the paths that are outside the data path or not normalised."""
    return [
        path
        for path in paths
        if path != posixpath.normpath(path) or not f"{path}/".startswith(f"{PATH}/")
    ]


@pytest.mark.security("S-1")
def test_every_name_has_its_own_folder(shows: Callable[[str], None]) -> None:
    """Each legal name has its own folder, a plain entry, unique even on case-insensitive disks."""
    found = names(NAMES, random.Random(SEED))
    places: dict[str, str] = {}
    for name in found:
        if not is_valid_name(name):
            with pytest.raises(ValueError, match="not a legal name"):
                directory_name(name)
            continue
        place = directory_name(name)
        assert "/" not in place
        assert place not in (".", "..")
        assert len(place.encode()) <= 255
        assert place.isascii()
        assert place.isprintable()
        assert place == place.casefold()
        assert name == topic_of_directory(place)
        assert name == places.setdefault(place, name)
    assert 1000 < len(places) < len(found)
    shows(f"names {NAMES:,}, of them legal {len(places):,}, sharing a place 0")


@pytest.mark.security("S-1")
def test_no_command_leaves_the_data_path(shows: Callable[[str], None]) -> None:
    """No name in PUB, SUB or topic deletion accesses a path outside the data path."""
    disk = Watched()
    harness = BrokerHarness(disk)
    chosen = names(TOPICS, random.Random(SEED + 1))
    refused = 0
    for name in chosen:
        for command in (commands.pub, commands.sub):
            client = harness.connect()
            said: Any = (name, b"x") if command is commands.pub else (name, name)
            try:
                client.say(command(*said))
            except UnicodeEncodeError:  # no client can send this
                refused += 1
                continue
            refused += any(answer.startswith(b"E_") for answer in client.answers())
            client.close()
        if name in harness.broker.topics:
            harness.broker.delete_topic(name, harness.clock.now())
            harness.turn()
    assert refused > 0
    assert [] == strays(disk.seen)
    kept = {path.split("/")[2] for path in disk.paths() if path.count("/") >= 2}
    assert {"topics", "trash"} >= kept - {"sparq.json", "reserve"}
    shows(f"names {TOPICS:,}, paths asked for {len(disk.seen):,}, outside the data path 0")


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


@pytest.mark.security("S-1")
def test_a_real_nsqd_stays_in_its_data_path(tmp_path: Path, shows: Callable[[str], None]) -> None:
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
    shows(f"nasty names {len(NASTY)} over TCP and HTTP, files changed outside the data path 0")
