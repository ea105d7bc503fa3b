"""The rows of the security table, and the report of the checks that test them.

A check is a test function marked `@pytest.mark.security("N-3")`, with several names if it tests
several rows; its cases count as one check. Names (S), network (N), access (A), web (W), supply (D).
Where a rule is stricter than NSQ it is an option, off by default, and its check turns it on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[2]
MARKER: Final = "security"
CHECK: Final = "security check"
FIGURE: Final = "figure"

ROWS: Final = {
    "S-1": "no topic or channel name leads outside the data path, and no two names share a folder",
    "S-2": "the tools check names again, and write files only below their output folder",
    "S-3": "topics, channels, connections and the bytes of a topic can be limited",
    "N-1": "silent connections are closed: before the magic bytes, in a handshake, in an HTTP head",
    "N-2": "a command or request that arrives too slowly is cut off and delays no other client",
    "N-3": "sizes are checked before memory is allocated",
    "N-4": "connections of unreachable peers are closed; heartbeats can be required",
    "N-5": "the size of decompressed data is bounded",
    "N-6": "a client that sends commands and reads no responses uses bounded memory",
    "N-7": "IDENTIFY and AUTH bodies are bounded in size, nesting depth and number range",
    "N-8": "no client can finish, requeue or touch another client's messages",
    "N-9": "a command in the wrong state is refused; data sent before TLS starts is not executed",
    "N-10": "TLS 1.2 or newer, no weak ciphers; client certificates and TLS can be required",
    "N-11": "the client library verifies host names in certificates, and bounds what it reads",
    "N-12": "a daemon without free file descriptors neither exits nor spins",
    "A-1": "AUTH denies by default, and is checked at every publish and subscribe",
    "A-2": "the identity of a client never comes from its IDENTIFY",
    "A-3": "routes that change state accept only their method, and require the token if one is set",
    "A-4": "nsqlookupd can check the broadcast addresses of nsqds, and limit each peer",
    "A-5": "no output contains a secret",
    "A-6": "no client can forge log lines",
    "W-1": "without configuration, only requests from nsqadmin's own machine may change state",
    "W-2": "pages of other sites cannot change state",
    "W-3": "no name and no message body can inject a script",
    "W-4": "every response has security headers, and static files come from a fixed table",
    "W-5": "requests for unknown host names are refused",
    "W-6": "nsqadmin sends no request to an address that only a peer or a user named",
    "W-7": "ambiguous HTTP requests are refused",
    "W-8": "pages are accessible and have no known weaknesses",
    "D-1": "no unpickling, no eval, no shell",
    "D-2": "dependencies are pinned by hash and have no known weaknesses",
    "D-3": "files are private to their owner, and daemons need no privileges",
    "D-4": "all tools treat message bodies as bytes",
    "D-5": "Spark's plans contain no secrets; its schema is fixed, its bodies bounded",
}


def marked() -> Iterator[tuple[str, str]]:
    """Yield every (row, place) marked in the tests."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"mark.{MARKER}(" not in text:
            continue
        place = path.relative_to(TESTS.parent)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                yield from ((name, f"{place}:{node.lineno}") for name in _names_in(node))


def run_paths() -> list[str]:
    """Return the files and folders whose tests `make security` runs."""
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^SECURITY_TESTS \+?:?= (.*)$", makefile, re.MULTILINE)
    return " ".join(lines).split()


def _names_in(call: ast.Call) -> list[str]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != MARKER:
        return []
    return [str(word.value) for word in call.args if isinstance(word, ast.Constant)]


class Report:
    """Counts the checks of one run, and those whose cases have all passed."""

    def __init__(self) -> None:
        self._checks: set[str] = set()
        self._spoilt: set[str] = set()
        self._skipped: dict[str, str] = {}
        self._passed: set[str] = set()
        self._figures: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Mark the item's reports as those of a check, also if they come from another process."""
        if item.get_closest_marker(MARKER) is not None:
            item.user_properties.append((CHECK, True))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report: a check passes if at least one case has passed and none has failed."""
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
        """Return the summary of the run; empty if it had no check."""
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
        """Print the summary."""
        for line in self.lines():
            terminalreporter.write_line(line)


def _check(nodeid: str) -> str:
    """Return a test function's name, without its case and without this folder."""
    return nodeid.partition("[")[0].rpartition("tests/scenarios/security/")[2]
