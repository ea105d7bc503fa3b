"""Which foreign client has which of NSQ's features: the cells that are tested, and docs/clients.md.

    python -m tests.scenarios.interop.matrix     write the page

A cell is a client and a feature. It is ABSENT, with the reason, or a test shows that it works; a
reason or a note becomes a footnote of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.interop.environments import HERE, ROOT, is_python

PAGE = ROOT / "docs" / "clients.md"
CLIENTS = ("pynsq", "gnsq", "ansq", "asyncnsq", "nsq-py", "nsqjs", "squeaky")
FEATURES = {
    "publish": "PUB",
    "mpub": "MPUB",
    "deferred": "DPUB",
    "consume": "consume",
    "requeue": "requeue",
    "touch": "touch",
    "timeout": "timeout",
    "backoff": "backoff",
    "heartbeats": "heartbeats",
    "discovery": "discovery",
    "tls": "TLS",
    "snappy": "snappy",
    "deflate": "deflate",
    "auth": "AUTH",
    "layers": "all three",
    "refusal": "refused PUB",
}
Cell = tuple[str, str]

NO_BACKOFF = "The client has no backoff: `RDY` stays unchanged when a message is requeued."
NO_COMPRESSION = "The client has no compression."
ASYNCNSQ_TLS = (
    "The client starts TLS on a socket that asyncio's transport still owns, with an argument"
    " `loop` that Python 3.10 removed, and with TLS 1.0 only. Its metadata require Python 3.6"
    " to 3.9."
)
ABSENT: dict[Cell, str] = {
    ("ansq", "backoff"): NO_BACKOFF,
    ("ansq", "tls"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "snappy"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "deflate"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "auth"): (
        "nsqd answers the client's AUTH correctly, but the client does not record that it is"
        " authorized: its next command raises `NSQUnauthorized` and is not sent."
    ),
    ("ansq", "layers"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("asyncnsq", "backoff"): NO_BACKOFF,
    ("asyncnsq", "tls"): ASYNCNSQ_TLS,
    ("asyncnsq", "layers"): ASYNCNSQ_TLS,
    ("nsq-py", "deferred"): "The client has no command for deferred publishing.",
    ("nsq-py", "backoff"): NO_BACKOFF,
    ("nsq-py", "snappy"): NO_COMPRESSION,
    ("nsq-py", "deflate"): NO_COMPRESSION,
    ("nsq-py", "layers"): NO_COMPRESSION,
    ("squeaky", "backoff"): NO_BACKOFF,
    ("squeaky", "heartbeats"): "The client cannot request an interval.",
    ("squeaky", "tls"): "The client has no TLS.",
    ("squeaky", "snappy"): NO_COMPRESSION,
    ("squeaky", "deflate"): NO_COMPRESSION,
    ("squeaky", "auth"): "The client has no AUTH.",
    ("squeaky", "layers"): "The client has none of the three.",
}
GNSQ_LAYERS = (
    "Its `Producer` cannot process the `OK` after an upgrade (`KeyError`), so the test publishes"
    " with `NsqdTCPClient`, its connection class. Its `Consumer` works."
)
NEW_CONNECTION = (
    "The client closes its connection after the refusal, as Go's nsqd would, and reconnects"
)
NOTES: dict[Cell, str] = {
    ("pynsq", "snappy"): (
        "The client loses its connection when a read returns less than a whole chunk of the"
        ' stream: what the client returns for "not yet" is an error to Tornado. The test shows'
        " that it works with whole chunks: messages of up to 10 kB, ten at a time."
    ),
    ("gnsq", "tls"): GNSQ_LAYERS,
    ("gnsq", "snappy"): GNSQ_LAYERS,
    ("gnsq", "deflate"): GNSQ_LAYERS,
    ("gnsq", "layers"): GNSQ_LAYERS,
    ("gnsq", "refusal"): f"{NEW_CONNECTION} automatically.",
    ("asyncnsq", "discovery"): (
        "With discovery the client sends no IDENTIFY, so its options have no effect."
    ),
    ("nsq-py", "tls"): (
        "The client requests TLS 1.0 only, for which OpenSSL 3 has no ciphers: the test redefines"
        " `ssl.PROTOCOL_TLSv1` as any version."
    ),
    ("nsq-py", "refusal"): f"{NEW_CONNECTION} when its user calls `check_connections`.",
    ("nsqjs", "refusal"): f"{NEW_CONNECTION} when its user makes a new `Writer`.",
    ("squeaky", "refusal"): f"{NEW_CONNECTION} when its user makes a new `Publisher`.",
}

# Differences that tests must allow for: clients that close their connection on any refused
# publish, and clients that work over a layer only with few, small messages.
CLOSES_ON_REFUSAL = {"gnsq", "nsq-py", "nsqjs", "squeaky"}
FEW_AND_SMALL = {("pynsq", "snappy")}


def cell(feature: str) -> Callable[[Any], Any]:
    """Run the decorated test of `feature` once for each client that has the feature."""
    assert feature in FEATURES
    return pytest.mark.parametrize(
        "name", [name for name in CLIENTS if (name, feature) not in ABSENT]
    )


def version(name: str) -> str:
    """The client's version in its lock file."""
    if is_python(name):
        lock = (HERE / f"requirements-{name}.txt").read_text()
        found = re.search(rf"^{name}(?:\[\w+\])?==(\S+)", lock, re.MULTILINE)
        assert found, name
        return found[1]
    lock = (HERE / name / "package-lock.json").read_text()
    return str(json.loads(lock)["packages"][f"node_modules/{name}"]["version"])


def render() -> str:
    """Render the page."""
    notes: list[str] = []
    rows = [
        ["", *FEATURES.values()],
        ["---", *(":---:" for _ in FEATURES)],
        *([f"{name} {version(name)}", *row(name, notes)] for name in CLIENTS),
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in rows)
    foot = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return (HERE / "clients.md.in").read_text().format(table=table, notes=foot)


def row(name: str, notes: list[str]) -> list[str]:
    """Return a client's cells; footnotes that are not yet in `notes` are added to it."""
    cells = []
    for feature in FEATURES:
        one = (name, feature)
        reason = ABSENT.get(one) or NOTES.get(one)
        if reason and reason not in notes:
            notes.append(reason)
        mark = f" [{notes.index(reason) + 1}]" if reason else ""
        cells.append(("no" if one in ABSENT else "yes") + mark)
    return cells


if __name__ == "__main__":
    PAGE.write_text(render())
