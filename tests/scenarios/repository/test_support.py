"""Tests, proofs and benchmarks share one V2 client, and tests do not import proofs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("tests", "proofs", "bench")
MAGIC = re.compile(r"""b["'] {2}V2|\bMAGIC_V[2]\b""")
PROOFS = re.compile(r"^\s*(?:from|import) proofs\b", re.M)

SAYS_MAGIC = {
    "tests/support/v2_client.py": "the one client",
    "tests/protocol/test_commands.py": "compares the constant with NSQ's bytes",
    "tests/client/scripted.py": "a server for tests of sparq's client",
    "tests/scenarios/client_library/tap.py": "reads what sparq's client sends",
    "tests/spark/range_server.py": "a server for tests of Spark's source",
    "tests/nsqlookupd/test_tcp.py": "a wrong magic for nsqlookupd",
    "proofs/hostile_parts/server_targets.py": "a wrong magic for nsqlookupd",
    "bench/load.py": "load generators read arrays of equal frames: one by one would be too slow",
    "bench/programs/bound_program.py": "runs in an environment without sparq and its tests",
}
"""Files that may contain the magic bytes themselves, with the reason."""


def sources() -> Iterator[tuple[str, str]]:
    """Yield path and text of each Python file of tests, proofs and benchmarks."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_there_is_one_v2_client() -> None:
    """Only listed files contain the magic bytes; others use `tests/support/v2_client.py`."""
    assert SAYS_MAGIC.keys() == {path for path, text in sources() if MAGIC.search(text)}


# Split in two, so that this file passes its own check.
@pytest.mark.parametrize("halves", [('b"  ', 'V2"'), ("b'  ", "V2PUB t'"), ("MAGIC_", "V2")])
def test_every_way_to_write_the_magic_bytes_is_found(halves: tuple[str, str]) -> None:
    """The check recognises every way to write the magic bytes."""
    assert MAGIC.search(f"    connection.sendall({''.join(halves)})")


def test_only_tests_of_proofs_import_proofs() -> None:
    """Only the tests of the proofs import proofs; proofs may import test support.

    `make delta` is a proof that is written as a test.
    """
    found = [path for path, text in sources() if PROOFS.search(text)]

    assert [] == [path for path in found if re.match(r"tests/(?!proofs/|.*/(test_)?delta_)", path)]
