"""The foreign script and style that are shipped: what they are, unchanged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import sparq

ROOT = Path(__file__).parents[3]
VENDOR = Path(sparq.__file__).parent / "nsqadmin" / "static" / "vendor"
LIST = json.loads((VENDOR / "list.json").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "locks" / "web" / "package-lock.json").read_text(encoding="utf-8"))
MANIFEST = json.loads((ROOT / "locks" / "web" / "package.json").read_text(encoding="utf-8"))


def test_every_file_is_the_one_that_was_fetched() -> None:
    """The sha256 of each file is that of the list, and no file is there without being listed."""
    listed = {name: total for package in LIST for name, total in package["sha256"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "list.json"
    }

    assert listed == found


@pytest.mark.parametrize("package", LIST, ids=lambda package: package["name"])
def test_each_package_is_the_locked_one_with_its_licence(package: dict) -> None:
    """Version, npm's sum and licence are those of the lock, which pins the exact version."""
    locked = LOCK["packages"][f"node_modules/{package['name']}"]

    assert locked["version"] == package["version"] == MANIFEST["dependencies"][package["name"]]
    assert locked["integrity"] == package["npm_integrity"]
    assert locked["license"] == package["license"]
    assert any(name.endswith(".LICENSE.txt") for name in package["sha256"])
