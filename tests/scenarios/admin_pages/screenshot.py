"""Writes docs/nsqadmin_light.png and docs/nsqadmin_dark.png: `make screenshot`.

They show the first page of a running cluster: three nsqds, a shop's topics, and channels whose
consumers keep up, lag or are missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.scenarios.admin_pages.browser import Reader, started
from tests.scenarios.admin_pages.cluster import Cluster, wait_for_nodes

DOCS = Path(__file__).parents[3] / "docs"
LIVELY_SECONDS = 100.0
SIZE = {"width": 1360, "height": 1180}


def main(seconds: float) -> None:
    """Run the cluster for some time, so that its charts have data; then take screenshots."""
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home)) as cluster:
        wait_for_nodes(cluster)
        cluster.start_traffic()
        cluster.admin.get_json("/api/topics")
        with started() as browser:
            time.sleep(seconds)
            first_page(cluster, browser)


def first_page(cluster: Cluster, browser: Any) -> None:
    """Take the two screenshots of the documentation."""
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=SIZE, color_scheme=scheme)
        reader = Reader(context, cluster.url)
        reader.open("/")
        reader.page.wait_for_timeout(2500)
        path = DOCS / f"nsqadmin_{scheme}.png"
        reader.page.screenshot(path=path)
        context.close()
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=LIVELY_SECONDS)
    main(parser.parse_args().seconds)
