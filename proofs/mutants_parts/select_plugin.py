"""A plugin of pytest: runs only the tests that are listed in a file, in the order of the list.

A mutant's tests stop at the first failure, which only has to be seen: Hypothesis does not look for
a smaller example, stores none, and tries the same examples for each mutant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings


def pytest_configure() -> None:
    """After tests/conftest.py has loaded its profile, before tests take their settings from it."""
    phases = (Phase.explicit, Phase.generate)
    profile = settings(settings.default, phases=phases, derandomize=True, database=None)
    settings.register_profile("mutants", profile)
    settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """As the outermost wrapper: nothing orders the tests after it."""
    yield
    wanted = json.loads(Path(os.environ["SPARQ_TESTS"]).read_text(encoding="utf-8"))
    order = {name: place for place, name in enumerate(wanted)}
    collected = {item.nodeid for item in items}
    # The name of an example has values in it, which a change of a constant changes.
    renamed = {name.partition("[")[0] for name in wanted if name not in collected}
    places = {
        item: order.get(item.nodeid, len(order))
        for item in items
        if item.nodeid in order or item.nodeid.partition("[")[0] in renamed
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in places])
    items[:] = sorted(places, key=places.__getitem__)
