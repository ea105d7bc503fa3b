"""Log lines have NSQ's form."""

import logging
import re
from collections.abc import Iterator

import pytest

from sparq.program.logging import level_name, parse_level, set_up


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


def test_a_line_has_prefix_time_level_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    """`[prefix] 2006/01/02 15:04:05.000000 LEVEL: text`, on stderr."""
    set_up("[nsqd] ", logging.INFO)
    logging.getLogger("x").warning("disk %d%% full", 90)

    line = capsys.readouterr().err
    when = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"
    assert re.fullmatch(rf"\[nsqd\] {when} WARNING: disk 90% full\n", line)


@pytest.mark.behaviour("lg.TestLogging")
def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Levels filter, and a second set-up replaces the first."""
    set_up("a ", logging.DEBUG)
    set_up("b ", parse_level("Error"))
    for level in ("debug", "info", "warn", "error", "fatal"):
        logging.getLogger("x").log(parse_level(level), "text of %s", level)

    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2][27:] for line in lines] == [
        "ERROR: text of error",
        "FATAL: text of fatal",
    ]


def test_an_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A text from outside cannot forge a line nor move the cursor."""
    set_up("", logging.INFO)
    logging.getLogger("x").info("topic %s", "a\n\r\t\x1b[31m\x85b\u2028\u202e")

    told = "INFO: topic a\\n\\r\\t\\x1b[31m\\x85b\\u2028\\u202e\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_bug_brings_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody expected is logged with where it happened; no line of it looks like another's."""
    set_up("", logging.INFO)
    try:
        raise ZeroDivisionError("x\n2026/01/01 FATAL: forged\r\x1b[2J")
    except ZeroDivisionError:
        logging.getLogger("x").exception("panic")

    text = capsys.readouterr().err
    assert "ERROR: panic\n    Traceback" in text
    assert "    ZeroDivisionError: x\n    2026/01/01 FATAL: forged\\r\\x1b[2J\n" in text
    assert 1 == sum(not line.startswith("    ") for line in text.splitlines())


def test_level_names_go_both_ways() -> None:
    """Names are taken in any case; others are refused with the list of them."""
    assert [level_name(parse_level(n)) for n in ("DEBUG", "Warn")] == ["debug", "warn"]
    with pytest.raises(ValueError, match="one of debug, info, warn, error, fatal"):
        parse_level("warning")
