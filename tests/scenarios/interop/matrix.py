"""Which foreign client has which of NSQ's features, and the expected outcome of each test.

1. A cell is a client and a feature. It is ABSENT (the client lacks the feature: there is no test),
   BROKEN (there is a test, and it must fail, because of a bug of the client), or it works.
2. Every cell that is not plainly "yes" has a reason, which becomes a footnote of docs/clients.md.
3. A run adds no date or machine to the page: the same outcomes always give the same page.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
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
ABSENT: dict[Cell, str] = {
    ("ansq", "backoff"): NO_BACKOFF,
    ("ansq", "tls"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "snappy"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "deflate"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("ansq", "layers"): "The client raises `NotImplementedError` where nsqd grants this.",
    ("asyncnsq", "backoff"): NO_BACKOFF,
    ("nsq-py", "deferred"): "The client has no command for deferred publishing.",
    ("nsq-py", "backoff"): NO_BACKOFF,
    ("nsq-py", "snappy"): NO_COMPRESSION,
    ("nsq-py", "deflate"): NO_COMPRESSION,
    ("nsq-py", "layers"): NO_COMPRESSION,
    ("squeaky", "backoff"): NO_BACKOFF,
    ("squeaky", "tls"): "The client has no TLS.",
    ("squeaky", "snappy"): NO_COMPRESSION,
    ("squeaky", "deflate"): NO_COMPRESSION,
    ("squeaky", "auth"): "The client has no AUTH.",
    ("squeaky", "layers"): "The client has none of the three.",
}
# The client's error text for each known failure: any other failure is a new one.
SYMPTOMS: dict[Cell, str] = {
    ("ansq", "auth"): "NSQUnauthorized: NSQ server requires client authorization",
    ("asyncnsq", "tls"): "got an unexpected keyword argument 'loop'",
    ("asyncnsq", "layers"): "got an unexpected keyword argument 'loop'",
}
ASYNCNSQ_TLS = (
    "The client starts TLS on a socket that asyncio's transport still owns, with an argument"
    " `loop` that Python 3.10 removed, and with TLS 1.0 only. Its metadata require Python 3.6"
    " to 3.9."
)
BROKEN: dict[Cell, str] = {
    ("ansq", "auth"): (
        "nsqd answers the client's AUTH correctly, but the client does not record that it is"
        " authorized: its next command raises `NSQUnauthorized` and is not sent."
    ),
    ("asyncnsq", "tls"): ASYNCNSQ_TLS,
    ("asyncnsq", "layers"): ASYNCNSQ_TLS,
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
    ("squeaky", "heartbeats"): (
        "The client cannot request an interval: the test's proxy adds one to its IDENTIFY."
    ),
    ("squeaky", "refusal"): f"{NEW_CONNECTION} when its user makes a new `Publisher`.",
}

# Differences that tests must allow for: clients that close their connection on any refused
# publish, clients that cannot request a heartbeat interval, and clients that work over a layer
# only with few, small messages.
CLOSES_ON_REFUSAL = {"gnsq", "nsq-py", "nsqjs", "squeaky"}
NO_HEARTBEAT_SETTING = {"squeaky"}
FEW_AND_SMALL = {("pynsq", "snappy")}

WORKS, FAILS, LACKS = "yes", "fails", "no"


def cell(feature: str) -> Callable[[Any], Any]:
    """Run the decorated test of `feature` once for each client that has the feature."""
    assert feature in FEATURES

    def clients_that_have_it() -> list[Any]:
        broken = {name: reason for (name, of), reason in BROKEN.items() if of == feature}
        return [
            pytest.param(
                name,
                marks=[pytest.mark.xfail(strict=True, reason=broken[name])]
                if name in broken
                else [],
            )
            for name in CLIENTS
            if (name, feature) not in ABSENT
        ]

    def marked(test: Any) -> Any:
        return pytest.mark.feature(feature)(
            pytest.mark.parametrize("name", clients_that_have_it())(test)
        )

    return marked


def tested_cells() -> set[Cell]:
    """All cells with a test."""
    return {(name, feature) for name in CLIENTS for feature in FEATURES} - set(ABSENT)


def expected() -> dict[Cell, str]:
    """The expected outcome of every test, according to the tables above."""
    return {one: FAILS if one in BROKEN else WORKS for one in tested_cells()}


def version(name: str) -> str:
    """The client's version in its lock file."""
    if is_python(name):
        lock = (HERE / f"requirements-{name}.txt").read_text()
        found = re.search(rf"^{name}(?:\[\w+\])?==(\S+)", lock, re.MULTILINE)
        assert found, name
        return found[1]
    lock = (HERE / name / "package-lock.json").read_text()
    return str(json.loads(lock)["packages"][f"node_modules/{name}"]["version"])


def render(outcomes: Mapping[Cell, str]) -> str:
    """Render the page from the outcomes of all tested cells."""
    notes: list[str] = []
    rows = [
        ["", *FEATURES.values()],
        ["---", *(":---:" for _ in FEATURES)],
        *([f"{name} {version(name)}", *row(name, outcomes, notes)] for name in CLIENTS),
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in rows)
    foot = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return (HERE / "clients.md.in").read_text().format(table=table, notes=foot)


def row(name: str, outcomes: Mapping[Cell, str], notes: list[str]) -> list[str]:
    """Return a client's cells; footnotes that are not yet in `notes` are added to it."""
    cells = []
    for feature in FEATURES:
        one = (name, feature)
        reason = ABSENT.get(one) or BROKEN.get(one) or NOTES.get(one)
        if reason and reason not in notes:
            notes.append(reason)
        mark = f" [{notes.index(reason) + 1}]" if reason else ""
        cells.append((LACKS if one in ABSENT else outcomes[one]) + mark)
    return cells


def write(outcomes: Mapping[Cell, str], page: Path = PAGE) -> None:
    """Write the page if its text changed."""
    text = render(outcomes)
    if not page.exists() or page.read_text() != text:
        page.write_text(text)
