"""What `make dead` finds, and that its list of exceptions holds nothing that has no need of one."""

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
    """A name in the list stands for something that would be found without it."""
    watch = Vulture()
    watch.scavenge([str(ROOT / path) for path in SETTINGS["paths"]])
    found = {item.name for item in watch.get_unused_code(SETTINGS["min_confidence"])}

    needless = [
        pattern
        for pattern in SETTINGS["ignore_names"]
        if not any(fnmatchcase(name, pattern) for name in found)
    ]

    assert [] == needless


def test_what_is_unused_is_found() -> None:
    """Functions, classes and methods, with the list and the confidence that the project has."""
    watch = Vulture(ignore_names=SETTINGS["ignore_names"])
    watch.scan(UNUSED)

    found = [item.name for item in watch.get_unused_code(SETTINGS["min_confidence"])]

    assert ["unused", "Unused", "method"] == found
