"""`make dead` finds unused code, and each exception in its list is needed."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vulture"]
UNUSED = """
def _used(): ...
def unused(): _used()
class Unused:
    def method(self): ...
"""


def test_each_exception_is_needed() -> None:
    """Every exception matches a name that would be reported without it."""
    watch = Vulture()
    watch.scavenge([str(ROOT / path) for path in SETTINGS["paths"]])
    found = {item.name for item in watch.get_unused_code(SETTINGS["min_confidence"])}

    needless = [
        pattern
        for pattern in SETTINGS["ignore_names"]
        if not any(fnmatchcase(name, pattern) for name in found)
    ]

    assert [] == needless


def test_unused_code_is_found() -> None:
    """Unused functions, classes and methods are found with the project's settings."""
    watch = Vulture(ignore_names=SETTINGS["ignore_names"])
    watch.scan(UNUSED)

    found = [item.name for item in watch.get_unused_code(SETTINGS["min_confidence"])]

    assert ["unused", "Unused", "method"] == found
