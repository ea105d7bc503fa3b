"""The rows of the security table, and the count of the checks that hold them.

A check is one test function marked `@pytest.mark.security("N-3")`, with several names if it holds
several rows; its cases count together. Names (S), network (N), access (A), web (W), supply (D).
Where a rule is stricter than NSQ it is an option, off unless asked for, and its check turns it on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
MARKER: Final = "security"
CHECK: Final = "security check"
FIGURE: Final = "figure"

ROWS: Final = {
    "S-1": "no name leaves the data path, and no two names share a place in it",
    "S-2": "tools check names again, and their files stay in their folder",
    "S-3": "topics, channels, connections and bytes of a topic can be limited",
    "N-1": "silent connections go: before the magic bytes, in a handshake, in a head",
    "N-2": "a command or a request that trickles in is given up, and hurts nobody else",
    "N-3": "sizes are checked before anything is allocated",
    "N-4": "peers that are gone are dropped; heartbeats off can be forbidden",
    "N-5": "inflation is bounded",
    "N-6": "a flood whose sender does not read is bounded",
    "N-7": "IDENTIFY and AUTH bodies are bounded in size, depth and numbers",
    "N-8": "nobody answers another client's messages",
    "N-9": "a command out of its state is refused; nothing crosses the start of TLS",
    "N-10": "TLS 1.2 at least, no weak cipher, client certificates, TLS required",
    "N-11": "the client library verifies names and bounds what it reads",
    "N-12": "no file descriptors left: no spinning, no death",
    "A-1": "AUTH denies by default and is asked at every publish and subscribe",
    "A-2": "identity is never what IDENTIFY says",
    "A-3": "routes that change something: POST and a token, where asked for",
    "A-4": "nsqlookupd can check what a peer calls its address; limits for each peer",
    "A-5": "no secret in any output",
    "A-6": "no client writes log lines of its own",
    "W-1": "no administrator unless configured",
    "W-2": "no write from a foreign site",
    "W-3": "no script from any name or body",
    "W-4": "headers, and static files by table",
    "W-5": "known hosts only",
    "W-6": "no request to where a peer points",
    "W-7": "ambiguous HTTP is refused",
    "W-8": "accessible, without known weaknesses",
    "D-1": "no dangerous calls",
    "D-2": "dependencies pinned by hash and without known weaknesses",
    "D-3": "private files, an unprivileged daemon",
    "D-4": "bodies are bytes to every tool",
    "D-5": "no secret in Spark's plans; fixed schema, bounded bodies",
}

ELSEWHERE: Final = {
    "W-3": "needs the pages of nsqadmin in a browser",
    "W-7": "needs the pages of nsqadmin",
    "W-8": "needs the pages of nsqadmin in a browser",
}
"""Rows whose part of sparq is not there yet: no check may claim them."""


def marked() -> Iterator[tuple[str, str]]:
    """Every (row, place) that is marked in the text of the tests here."""
    for path in sorted(HERE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield from ((name, f"{path.name}:{node.lineno}") for name in _names_in(node))


def _names_in(call: ast.Call) -> list[str]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != MARKER:
        return []
    return [str(word.value) for word in call.args if isinstance(word, ast.Constant)]


class Report:
    """Counts, over one run, the checks and those of which every case has passed."""

    def __init__(self) -> None:
        self._checks: set[str] = set()
        self._spoilt: set[str] = set()
        self._skipped: dict[str, str] = {}
        self._passed: set[str] = set()
        self._figures: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Let the reports of a check say that they are: it may run in another process."""
        if item.get_closest_marker(MARKER) is not None:
            item.user_properties.append((CHECK, True))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A check has passed when a case has, and none has failed."""
        check = _check(report.nodeid)
        if (CHECK, True) not in report.user_properties:
            return
        self._checks.add(check)
        if report.failed:
            self._spoilt.add(check)
        elif report.skipped:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self._skipped[check] = str(text).removeprefix("Skipped: ")
        elif report.when == "call":
            self._passed.add(check)
            self._figures += [str(text) for key, text in report.user_properties if key == FIGURE]

    def lines(self) -> list[str]:
        """What the run says at its end; nothing when it held no check."""
        if not self._checks:
            return []
        passed = (self._passed - self._spoilt) & self._checks
        skipped = {name: why for name, why in self._skipped.items() if name in self._checks}
        skipped = {name: why for name, why in skipped.items() if name not in passed | self._spoilt}
        count = f", skipped {len(skipped)}" if skipped else ""
        head = f"security checks {len(self._checks)}, passed {len(passed)}{count}"
        reasons = [f"skipped: {name}: {why}" for name, why in sorted(skipped.items())]
        return [head, *(f"  {line}" for line in (*sorted(self._figures), *reasons))]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it."""
        for line in self.lines():
            terminalreporter.write_line(line)


def _check(nodeid: str) -> str:
    """A test function's name, without its case and its folder."""
    return nodeid.partition("[")[0].rpartition("tests/security/")[2]
