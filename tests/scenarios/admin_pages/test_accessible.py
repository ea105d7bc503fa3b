"""axe-core finds no serious violation on any page, light or dark, wide or narrow."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from locks.web import vendor

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster

PATHS = (
    "/",
    "/topics?view=channels",
    "/topics/orders",
    "/topics/payments/fraud",
    "/connections?topic=payments&channel=fraud",
    "/nodes",
    "/counter",
    "/lookup",
    "/messages?topic=orders&channel=shipping",
    "/messages?topic=orders&show=search&go=1",
    "/replay?topic=orders&channel=shipping&to=-1h",
    "/dead-letters?topic=orders.dead",
    "/audit",
    "/policies",
    "/topics/none",
)
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("axe")
    try:
        modules = vendor.install(folder)
    except subprocess.CalledProcessError:
        pytest.skip("needs npm's registry")
    return Path(modules, "axe-core", "axe.min.js").read_text(encoding="utf-8")


def findings(reader: Reader, axe: str) -> list[str]:
    """The serious and critical violations on the current page."""
    reader.page.evaluate(axe)
    result = reader.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{found['id']}: {node['target']} {node['failureSummary']}"
        for found in result["violations"]
        if found["impact"] in SERIOUS
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(
    ("screen", "paths"),
    [(("light", 1280), PATHS), (("dark", 1280), PATHS[::3]), (("light", 360), PATHS[1::4])],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_no_serious_violation(
    browser: Any, cluster: Cluster, axe: str, screen: tuple[str, int], paths: tuple[str, ...]
) -> None:
    """axe-core finds nothing serious on the pages or in a confirmation dialog."""
    found: dict[str, list[str]] = {}
    scheme, width = screen
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    reader = Reader(context, cluster.url)
    for path in paths:
        reader.open(path)
        found[path] = findings(reader, axe)
    reader.open("/topics/orders")
    reader.page.get_by_role("button", name="Delete…").click()
    found["a question"] = findings(reader, axe)
    context.close()

    assert {path: serious for path, serious in found.items() if serious} == {}
