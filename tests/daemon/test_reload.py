"""SIGHUP in any daemon: which options are applied, and what is logged."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from sparq.daemon.options import LoggingOptions
from sparq.daemon.reload import apply_live_options, new_value, read_again
from sparq.options.declare import option
from sparq.options.mistakes import Mistake

pytestmark = pytest.mark.usefixtures("log_levels_are_restored")


@dataclass(frozen=True, slots=True)
class Options:
    """A daemon's options: a list that SIGHUP applies, and a number that needs a restart."""

    peers: tuple[str, ...] = option((), "peers", name="peer", key="peers", live="peers")
    size: int = option(1, "size")
    log: LoggingOptions = field(default_factory=LoggingOptions, metadata={"prefix": "log-"})


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return levels and texts of the log lines."""
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_only_live_options_are_applied(caplog: pytest.LogCaptureFixture) -> None:
    """Live options are applied; each change is logged as applied or as needing a restart."""
    logging.getLogger().setLevel(logging.INFO)
    old, new = Options(), Options(("a:1", "b:2"), 2)

    assert Options(("a:1", "b:2"), 1) == apply_live_options(old, new, ("peers", "log"))
    assert [
        ("INFO", 'SIGHUP: peers is now "a:1", "b:2"'),
        ("WARNING", "SIGHUP: size has changed: that needs a restart"),
    ] == logged(caplog)


def test_a_change_of_the_log_level_is_always_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A change of the log level is logged at the more verbose of the two levels."""
    quiet = Options(log=LoggingOptions(level=logging.ERROR))
    loud = Options(log=LoggingOptions(level=logging.DEBUG))
    logging.getLogger().setLevel(logging.ERROR)

    assert loud == apply_live_options(quiet, loud, ("log",))
    assert logging.DEBUG == logging.getLogger().level
    assert quiet == apply_live_options(loud, quiet, ("log",))
    assert logging.ERROR == logging.getLogger().level
    assert [
        ("INFO", 'SIGHUP: log_level is now "debug"'),
        ("INFO", 'SIGHUP: log_level is now "error"'),
    ] == logged(caplog)


def test_a_file_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A Mistake is logged and changes nothing; any other exception is raised."""

    def fail() -> Options:
        raise Mistake("no such file")

    assert read_again(fail) is None
    assert [("ERROR", "SIGHUP: nothing is changed: no such file")] == logged(caplog)
    assert Options() == read_again(Options)
    with pytest.raises(ZeroDivisionError):
        read_again(lambda: 1 // 0)


def test_a_value_over_http_is_a_level_or_a_list_of_texts() -> None:
    """Addresses keep their order, and null means none; anything else is refused."""
    assert ("b:1", "a:2") == new_value("nsqlookupd_tcp_addresses", b' ["b:1", "a:2"] ')
    assert () == new_value("nsqlookupd_tcp_addresses", b"null")
    assert logging.WARNING == new_value("log_level", b"Warn")
    for name, body in (("addresses", b"[" * 100_000), ("addresses", b"[1]"), ("log_level", b"x")):
        with pytest.raises(ValueError, match=r"not a list|log level must be"):
            new_value(name, body)
