"""Writes docs/nsqadmin_light.png and docs/nsqadmin_dark.png: `make screenshot`.

The first page of a cluster at work: three nsqds, a shop's topics, consumers that keep up, that are
behind, and that are missing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.nsqadmin.pages.browser import Reader, started
from tests.nsqadmin.pages.cluster import Cluster, wait_for_nodes

DOCS = Path(__file__).parents[3] / "docs"
LIVELY_SECONDS = 100.0
SIZE = {"width": 1360, "height": 1180}


def main(seconds: float) -> None:
    """Let the cluster work for some time, so that its charts have lines; then take both."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        wait_for_nodes(cluster)
        cluster.lively()
        cluster.admin.get_json("/api/topics")
        time.sleep(seconds)
        with started() as browser:
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
    main(float(sys.argv[1]) if len(sys.argv) > 1 else LIVELY_SECONDS)
