"""Settings for all tests.

Hypothesis tests have no deadline per example.

A program that a test has run in this process may have changed the log level. Each test starts with
Python's default, so that its log does not depend on earlier tests.

A shell starts background jobs with Ctrl-C ignored, child processes inherit that, and an event loop
may leave its own handler installed. Each test starts with the handlers of a program in a terminal.

Tests marked `slow` run with `make test-all`, and not with `make test`, which keeps a short case of
each kind. `SLOW_GROUPS` marks whole groups; single tests elsewhere have the mark themselves.

On two shared cores a test is sometimes many times slower than usual; `pytest-timeout` ends a test
that takes too long.
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

from tests.support import behaviours, servers
from tests.support.forked import ForkServer
from tests.support.open_files import open_files

pytest_plugins = ["tests.support.shared_daemons", "tests.support.spark_session"]

FILES_LEFT_MAX = 25
# Each Java thread that has called a `foreachBatch` keeps its connection to this process: Py4J pools
# them, and a file of many queries leaves some 45. A test cannot close any of them.
SOCKETS_LEFT_MAX = 100

RUN_SECONDS = 3_000.0
"""Longer than all tests take on a machine twice as slow as the slowest one seen."""

SLOW = "needs minutes of its own: {target}"
SLOW_GROUPS = {
    "tests/bench/": ("make slow-tests ARGS=tests/bench", ("is_slower",)),
    "tests/proofs/test_short_runs.py": (
        "make slow-tests ARGS=tests/proofs",
        ("[bitrot]", "[crash]", "[golden]", "[simulate]"),
    ),
    "tests/scenarios/deploy/": (
        "make deploy",
        ("test_compose.py", "test_rules.py", "test_units.py"),
    ),
    "tests/scenarios/interop/test_clients.py": ("make interop", ("[nsqjs", "[pynsq")),
    "tests/scenarios/admin_pages/test_pages.py": (
        "make slow-tests ARGS=tests/scenarios/admin_pages",
        ("[1280]", "[/]", "[/topics]"),
    ),
    "tests/scenarios/admin_pages/test_cross_site.py::test_other_sites": (
        "make slow-tests ARGS=tests/scenarios/admin_pages",
        ("[localhost to 127",),
    ),
    "tests/scenarios/admin_pages/test_accessible.py": ("make security", ("[light]",)),
    "tests/scenarios/client_library/test_gevent.py": ("make slow-tests", ()),
    "tests/scenarios/docs/test_generated.py::test_the_site": ("make slow-tests", ()),
    "tests/scenarios/docs/test_pipeline_pages.py": (
        "make slow-tests",
        ("accepts_its_command_lines", "rules_of_the_pages"),
    ),
    "tests/scenarios/docs/test_shell.py::test_the_readmes_cluster": ("make slow-tests", ()),
    "tests/scenarios/pipeline/test_application.py": ("make slow-tests", ()),
    "tests/scenarios/pipeline/test_files.py": ("make slow-tests", ()),
    "tests/scenarios/pipeline/test_mistakes.py::test_a_wrong_address": (
        "make slow-tests",
        ("={free}]", "TLS", "=auth_secret=wrong]"),
    ),
    "tests/scenarios/pipeline/test_mistakes.py::test_a_mistake_that_spark_finds": (
        "make slow-tests",
        ("nosuch",),
    ),
    "tests/scenarios/spark/test_connect.py": ("make slow-tests", ()),
    "tests/scenarios/spark/test_reads.py": ("make slow-tests", ("predicates",)),
    "tests/scenarios/spark/test_session.py": (
        "make slow-tests",
        ("with_its_columns", "continues_from", "exactly_once"),
    ),
    "tests/pipeline/sessions/test_judge.py::test_planted": ("make slow-tests", ("[20261]",)),
}
"""Groups of slow tests: the folder or file, the target that runs it, and what of the names of its
tests `make test` keeps."""

settings.register_profile("sparq", deadline=None)
settings.load_profile("sparq")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Set the signal handlers of a program in a terminal, and log warnings.

    A script's background job inherits an ignored Ctrl-C, and one under nohup an ignored hangup.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # children do not inherit it
    logging.getLogger().setLevel(logging.WARNING)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of slow groups."""
    for group, (target, kept) in SLOW_GROUPS.items():
        if item.nodeid.startswith(group) and not any(name in item.nodeid for name in kept):
            item.add_marker(pytest.mark.slow(target))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files with long test timeouts first; files with equal timeouts stay in random order.

    Workers take one file after another: a long file that starts last runs alone, on one core of
    two.
    """
    if "SLOW_TESTS" not in os.environ:
        for item in items:
            if (marker := item.get_closest_marker("slow")) is not None:
                target = marker.args[0] if marker.args else "make slow-tests"
                item.add_marker(pytest.mark.skip(reason=SLOW.format(target=target)))
    usual = float(config.getini("timeout") or 0)
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = marker.args[0] if marker is not None and marker.args else usual
        longest[item.path] = max(seconds, longest.get(item.path, usual))
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(autouse=True, scope="session")
def daemons_are_forked() -> Iterator[None]:
    """Fork the nsqds that tests start from a process that has already imported their modules."""
    servers.fork_server = ForkServer()
    yield
    servers.fork_server.close()
    servers.fork_server = None


@pytest.fixture(autouse=True, scope="module")
def open_files_are_closed() -> Iterator[None]:
    """Assert that a test file leaves few files open: a user is usually limited to 1,024.

    Spark's session, which all files share, opens some in the file that uses it first.
    """
    before = open_files()
    yield
    left = [path for number, path in open_files().items() if number not in before]
    sockets = [path for path in left if path.startswith("socket:")]
    assert len(left) - len(sockets) < FILES_LEFT_MAX, left
    assert len(sockets) < SOCKETS_LEFT_MAX, left


def end_what_hangs(config: pytest.Config) -> None:
    """Make a process that does not end print its stacks and exit.

    `pytest-timeout` limits each test, but not what runs after the last one, nor what blocks after a
    test's timeout. A worker exits before the main process, so its test counts as failed.
    """
    is_worker = hasattr(config, "workerinput")
    seconds = RUN_SECONDS if is_worker else 1.2 * RUN_SECONDS
    # pytest does not capture output while it configures plugins: this is the real standard error.
    faulthandler.dump_traceback_later(seconds, exit=True, file=os.dup(2))


def answer_at_once(config: pytest.Config) -> None:
    """Make `pytest-rerunfailures` send its counts of each test without delay.

    Its processes write twice before they read, over TCP: the second write waited for the first
    one's acknowledgement, which the kernel delays. That cost each test 43 ms.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    # With these set, pytest prints the whole diff of unequal values: for two long lists that took
    # all the time that the run had.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    answer_at_once(config)
    end_what_hangs(config)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # This process's memory settings (see the Makefile) must not reach the processes that it
        # starts.
        for name in [name for name in os.environ if name.startswith("MALLOC_")]:
            del os.environ[name]
    config.addinivalue_line(
        "markers", "slow(target): runs with `make test-all` only, and with this target"
    )
    line = f"{behaviours.MARKER}(*names): asserts these lines of tests/support/behaviours.py"
    config.addinivalue_line("markers", line)
