"""One cluster for all tests of the pages, one browser per file; each test has its own topics.

Playwright runs an event loop in the main thread while it is started. If it outlived its file, no
asynchronous test could run later in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.admin_pages.browser import Reader, started
from tests.scenarios.admin_pages.cluster import Cluster, fill, wait_for_nodes


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running Chromium."""
    with started() as running:
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nsqds with topics in every state, and their nsqadmin."""
    with Cluster(tmp_path_factory.mktemp("pages"), nsqds=2) as running:
        wait_for_nodes(running)
        fill(running)
        yield running


@pytest.fixture
def reader(browser: Any, cluster: Cluster) -> Iterator[Reader]:
    """A page of the cluster's nsqadmin; the test fails if a problem occurs in it."""
    yield from opened_page(browser, cluster.url)


def opened_page(browser: Any, url: str, **options: Any) -> Iterator[Reader]:
    """A page in a separate browser profile; the test fails if a problem occurs in it."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    found = Reader(context, url)
    yield found
    context.close()
    assert found.problems == []


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the session."""
    return tmp_path_factory.mktemp("scratch")
