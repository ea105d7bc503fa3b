"""SIGHUP in any daemon: which options are taken, and what the log says."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from sparq.daemon.options import LoggingOptions
from sparq.daemon.reload import read_again, shown, take
from sparq.program.flags import FileError, flags_of
from sparq.protocol.option import option

pytestmark = pytest.mark.usefixtures("log_levels_are_restored")


@dataclass(frozen=True, slots=True)
class Options:
    """A daemon's options: one that SIGHUP applies, a list, and one that needs a restart."""

    peers: tuple[str, ...] = option((), "peers", name="peer", key="peers", live="peers")
    size: int = option(1, "size")
    log: LoggingOptions = field(default_factory=LoggingOptions, metadata={"prefix": "log-"})


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Levels and texts of the log lines."""
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_only_live_options_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is logged: it is in force now, or needs a restart."""
    logging.getLogger().setLevel(logging.INFO)
    old, new = Options(), Options(("a:1", "b:2"), 2)

    assert Options(("a:1", "b:2"), 1) == take(old, new, ("peers", "log"))
    assert [
        ("INFO", 'SIGHUP: peers is now "a:1", "b:2"'),
        ("WARNING", "SIGHUP: size has changed: that needs a restart"),
    ] == told(caplog)


def test_an_option_whose_new_value_could_not_be_applied_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller names what it has applied; the rest is as before."""
    assert Options() == take(Options(), Options(("a:1",)), ("log",))
    assert [("WARNING", "SIGHUP: peers has changed: that needs a restart")] == told(caplog)


def test_nothing_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, too: the operator has sent a signal and waits for an answer."""
    logging.getLogger().setLevel(logging.INFO)
    options = Options()

    assert options == take(options, Options(), ("log",))
    assert [("INFO", "SIGHUP: no option has changed")] == told(caplog)


def test_a_change_of_the_log_level_is_logged_in_either_direction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the more verbose of the two levels."""
    quiet = Options(log=LoggingOptions(level=logging.ERROR))
    loud = Options(log=LoggingOptions(level=logging.DEBUG))
    logging.getLogger().setLevel(logging.ERROR)

    assert loud == take(quiet, loud, ("log",))
    assert logging.DEBUG == logging.getLogger().level
    assert quiet == take(loud, quiet, ("log",))
    assert logging.ERROR == logging.getLogger().level
    assert [
        ("INFO", 'SIGHUP: log_level is now "debug"'),
        ("INFO", 'SIGHUP: log_level is now "error"'),
    ] == told(caplog)


def test_a_file_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The log says why; another error is a bug and is not hidden."""

    def fail() -> Options:
        raise FileError("no such file")

    assert read_again(fail) is None
    assert [("ERROR", "SIGHUP: nothing is changed: no such file")] == told(caplog)
    assert Options() == read_again(Options)
    with pytest.raises(ZeroDivisionError):
        read_again(lambda: 1 // 0)


def test_values_are_shown_as_help_shows_them() -> None:
    """A list with commas, texts in quotes, an empty value by that word."""
    flags = {flag.key: flag for flag in flags_of(Options)}

    assert '"a:1", "b:2"' == shown(flags["peers"], Options(("a:1", "b:2")))
    assert "empty" == shown(flags["peers"], Options())
    assert "1" == shown(flags["size"], Options())
    assert '"info"' == shown(flags["log_level"], Options())
    assert "empty" == shown(flags["log_prefix"], Options())
