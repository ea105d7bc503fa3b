"""How the files of many topics are read at the start: one after the other, or four at a time.

Reading small files is nearly all Python code, and threads then only wait for each other (the GIL):
with 16 of them a start with 3,000 topics took three times as long. Files with much to check, or on
a slow disk, are read sooner by a few threads. So each batch of topics is timed, and decides how the
next one is read; docs/performance.md has the figures.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sparq.broker.topics import Opening

OPENERS = 4
"""Threads, where they are of use."""
BATCH_TOPICS = 16
SLOW_SECONDS = 0.002
"""A topic that takes longer than this has more to read or to wait for than Python code to run."""


def run_all(openings: Sequence[Opening]) -> None:
    """Read the files of all these topics; what fails is for each opening to say."""
    with ThreadPoolExecutor(OPENERS, "nsqd-open") as pool:
        slow = False
        for at in range(0, len(openings), BATCH_TOPICS):
            batch = openings[at : at + BATCH_TOPICS]
            began = time.perf_counter()
            for _ in (pool.map if slow else map)(Opening.run, batch):
                pass
            slow = time.perf_counter() - began > SLOW_SECONDS * len(batch)
