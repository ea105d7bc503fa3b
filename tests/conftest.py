"""For all tests: random ones are not held to a time; behaviours and security checks are counted.

A program that a test has run in this process has set how much is logged: each test begins with
Python's default, so that what one finds in the log does not depend on those before it.

Who runs them in the background of a shell has Ctrl-C ignored, which all that is started inherits,
and a loop may leave a handler of its own behind: here it means what it means in a terminal.

Tests that are marked `slow` need minutes of their own, most of them for Spark: `make slow-tests`
runs them, and others of their kind run with all tests.

Two shared cores are sometimes many times slower than a test is used to; what runs for too long is
`pytest-timeout`'s to say.
"""

import faulthandler
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.scenarios.security import rows
from tests.support import behaviours, servers
from tests.support.forked import ForkServer
from tests.support.open_files import open_files

pytest_plugins = ["tests.support.shared_daemons", "tests.support.spark_session"]

FILES_LEFT_MAX = 25
# Each Java thread that has called a `foreachBatch` keeps its connection to this process: Py4J pools
# them, and a file of many queries leaves some 45. Nothing that a test can close is among them.
SOCKETS_LEFT_MAX = 100

RUN_SECONDS = 3_000.0
"""Longer than all tests take, on a machine that is twice as slow as any seen."""

SLOW = "needs minutes of its own: make slow-tests"

settings.register_profile("sparq", deadline=None)
settings.load_profile("sparq")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Signals mean what they mean to a program in a terminal, and warnings are logged.

    In the background of a script Ctrl-C is ignored, under nohup a hangup, and both are inherited.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # which no child inherits
    logging.getLogger().setLevel(logging.WARNING)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests may take longer than others begin first; chance orders those alike.

    Files are handed out one by one: a long one that begins last runs alone, on one core of two.
    """
    if "SLOW_TESTS" not in os.environ:
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason=SLOW))
    usual = float(config.getini("timeout") or 0)
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = marker.args[0] if marker is not None and marker.args else usual
        longest[item.path] = max(seconds, longest.get(item.path, usual))
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(autouse=True, scope="session")
def daemons_are_forked() -> Iterator[None]:
    """An nsqd that a test starts has its modules already."""
    servers.fork_server = ForkServer()
    yield
    servers.fork_server.close()
    servers.fork_server = None


@pytest.fixture(autouse=True, scope="module")
def open_files_are_closed() -> Iterator[None]:
    """A file of tests leaves few files open: an ordinary user may have 1,024 in all.

    Spark's session, which all files share, opens some where it is first used.
    """
    before = open_files()
    yield
    left = [path for number, path in open_files().items() if number not in before]
    sockets = [path for path in left if path.startswith("socket:")]
    assert len(left) - len(sockets) < FILES_LEFT_MAX, left
    assert len(sockets) < SOCKETS_LEFT_MAX, left


def end_what_hangs(config: pytest.Config) -> None:
    """Have a process that does not come to an end show where it is, and end.

    Each test has its time; what has none is what comes after the last one, and what waits for
    something once a test's time is over. A worker goes first, and its test counts as failed.
    """
    is_worker = hasattr(config, "workerinput")
    seconds = RUN_SECONDS if is_worker else 1.2 * RUN_SECONDS
    # Capturing rests while plugins are configured: this is the standard error of the process.
    faulthandler.dump_traceback_later(seconds, exit=True, file=os.dup(2))


def answer_at_once(config: pytest.Config) -> None:
    """Have `pytest-rerunfailures` send what it counts of each test without delay.

    Its processes write twice before they read, over TCP: the second write waited for the
    acknowledgement of the first, which the system puts off. That cost each test 43 ms.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Know the markers, and count what is marked."""
    # With them pytest compares what is not equal line by line, however long it is: two long lists
    # took all the time that the run had.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    answer_at_once(config)
    end_what_hangs(config)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # How this process keeps its memory (see the Makefile) is nothing for those that it starts.
        for name in [name for name in os.environ if name.startswith("MALLOC_")]:
            del os.environ[name]
    config.addinivalue_line("markers", f"slow: {SLOW}")
    line = f"{behaviours.MARKER}(*names): asserts these lines of tests/support/behaviours.py"
    config.addinivalue_line("markers", line)
    config.pluginmanager.register(behaviours.Report(), "behaviours")
    line = f"{rows.MARKER}(*names): checks these rows of tests/scenarios/security/rows.py"
    config.addinivalue_line("markers", line)
    config.pluginmanager.register(rows.Report(), "security")
