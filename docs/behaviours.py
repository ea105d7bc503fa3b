"""Writes docs/behaviours.md: NSQ's own tests, and the tests here that assert the same.

`make docs` generates the page from the marks of the tests (`tests.support.behaviours`).
"""

from __future__ import annotations

from tests.support.behaviours import BEHAVIOURS, LEFT_OUT, TESTS, places

HEAD = """# Behaviours of NSQ

What NSQ's own tests assert of nsqd, nsqlookupd and the disk queue, and the tests of sparq that
assert the same. The page is written by `make docs`: a test marked
`@pytest.mark.behaviour("TestBasicV2")` appears in the row of that name. The last group is
documented by NSQ but not tested there."""


UNIX = "unix."
"""The beginning of names of tests that NSQ runs a second time, over a unix socket."""


def page() -> str:
    """The page, as Markdown."""
    found = places(sorted(TESTS.rglob("test_*.py")))
    rows, again = [], []
    for group, names in BEHAVIOURS.items():
        rows.append(f"| **{group}** | |")
        for name in names:
            tests = found.get(name, [])
            if name.startswith(UNIX) and tests == found.get(name.removeprefix(UNIX)):
                again.append(f"`{name.removeprefix(UNIX)}`")
            else:
                rows.append(f"| `{name}` | {_cell(name, tests)} |")
    table = "\n".join(["| NSQ's test | tests of sparq |", "|---|---|", *rows])
    last = "NSQ runs these again over a unix socket; the same tests stand for them:"
    return f"{HEAD}\n\n{table}\n\n{last} {', '.join(again)}.\n"


def _cell(name: str, tests: list[str]) -> str:
    if not tests:
        return f"left out: {LEFT_OUT[name]}"
    return "<br>".join(f"`{test}`" for test in tests)
