"""A start: reading the files of many topics, and freezing objects for the garbage collector."""

import threading
import time
from pathlib import Path

import pytest

from sparq.broker.topics import Opening
from sparq.log.disk import DiskError
from sparq.nsqd import main
from sparq.nsqd.serving import BATCH_TOPICS, load_rarely_used, run_all
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for

SLOW_SECONDS = 0.01
TOPICS = 5 * BATCH_TOPICS + 3


def read_by(seconds: float) -> tuple[list[Opening], list[int]]:
    """Read topics that take `seconds` each; return them and the threads that read them."""
    threads: list[int] = []

    def read() -> None:
        time.sleep(seconds)  # a slow disk
        threads.append(threading.get_ident())
        raise DiskError("open", "/data", 5)

    openings = [Opening(str(number), read) for number in range(TOPICS)]
    run_all(openings)
    return openings, threads


def test_small_topics_are_read_in_the_main_thread() -> None:
    """The first batch is read in the main thread: threads would only wait for each other."""
    openings, threads = read_by(0)

    assert len(threads) == TOPICS == sum(opening.error is not None for opening in openings)
    assert {threading.get_ident()} == set(threads[:BATCH_TOPICS])


def test_slow_topics_are_read_by_several_threads() -> None:
    """If the first batch is slow, several other threads read the rest."""
    openings, threads = read_by(SLOW_SECONDS)

    assert len(threads) == TOPICS == sum(opening.error is not None for opening in openings)
    assert {threading.get_ident()} == set(threads[:BATCH_TOPICS])
    assert threading.get_ident() not in threads[BATCH_TOPICS:]
    assert len(set(threads)) > 2


OBJECTS_MAX = 2000
"""About 200 objects remain after a start, 20,000 if a module's objects are among them."""


def test_modules_are_excluded_from_garbage_collection(tmp_path: Path) -> None:
    """Modules, including those for HTTP, are frozen: collecting them would block all threads."""
    with spawn_nsqd(tmp_path) as nsqd:

        def objects() -> int:
            _, heap = nsqd.request("GET", "/debug/pprof/heap")
            return sum(int(line.split()[0]) for line in heap.decode().splitlines()[1:])

        # The last modules are loaded after the first request is answered.
        wait_for(lambda: 10 < objects() < OBJECTS_MAX, describe=objects)


def test_a_rarely_used_module_that_cannot_be_loaded_does_not_end_nsqd(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd serves clients by then, who may have taken the last file descriptor."""
    monkeypatch.setattr(main, "RARELY_USED", ("no_such_module", "encodings.idna"))

    load_rarely_used()

    assert "module no_such_module cannot be loaded" in caplog.text
