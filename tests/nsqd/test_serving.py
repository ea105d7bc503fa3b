"""A start: how the files of many topics are read, and what is kept from the garbage collector."""

import threading
import time
from pathlib import Path

from sparq.broker.topics import Opening
from sparq.log.disk import DiskError
from sparq.nsqd.serving import BATCH_TOPICS, run_all
from tests.support.servers import spawn_nsqd

SLOW_SECONDS = 0.01
TOPICS = 5 * BATCH_TOPICS + 3


def read_by(seconds: float) -> tuple[list[Opening], list[int]]:
    """Topics whose files take so long to read, all read; and the threads that have read them."""
    threads: list[int] = []

    def read() -> None:
        time.sleep(seconds)  # a slow disk
        threads.append(threading.get_ident())
        raise DiskError("open", "/data", 5)

    openings = [Opening(str(number), read) for number in range(TOPICS)]
    run_all(openings)
    return openings, threads


def test_small_topics_are_read_one_after_the_other() -> None:
    """Threads would only wait for each other."""
    openings, threads = read_by(0)

    assert len(threads) == TOPICS == sum(opening.error is not None for opening in openings)
    assert {threading.get_ident()} == set(threads[:BATCH_TOPICS])


def test_topics_that_take_long_are_read_some_at_a_time() -> None:
    """Once it was seen that they do."""
    openings, threads = read_by(SLOW_SECONDS)

    assert len(threads) == TOPICS == sum(opening.error is not None for opening in openings)
    assert {threading.get_ident()} == set(threads[:BATCH_TOPICS])
    assert threading.get_ident() not in threads[BATCH_TOPICS:]
    assert len(set(threads)) > 2


OBJECTS_MAX = 2000
"""There are some 200 after a start, and 20,000 where a module's are among them."""


def test_a_full_collection_does_not_go_through_what_stays(tmp_path: Path) -> None:
    """Modules, also those of HTTP, which are loaded last: it would hold all threads up for them."""
    with spawn_nsqd(tmp_path) as nsqd:
        _, told = nsqd.request("GET", "/debug/pprof/heap")
    counts = [int(line.split()[0]) for line in told.decode().splitlines()[1:]]
    assert 10 < sum(counts) < OBJECTS_MAX
