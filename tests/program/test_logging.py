"""Log lines have NSQ's form."""

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from sparq.program import logging as log_lines
from sparq.program.logging import KINDS_MAX, LEVEL, set_up
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


def test_a_line_has_prefix_time_level_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is `[prefix] 2006/01/02 15:04:05.000000 LEVEL: text`, on stderr."""
    set_up("[nsqd] ", logging.INFO)
    logging.getLogger("x").warning("disk %d%% full", 90)

    line = capsys.readouterr().err
    when = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"
    assert re.fullmatch(rf"\[nsqd\] {when} WARNING: disk 90% full\n", line)


@pytest.mark.behaviour("lg.TestLogging")
def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines below the level are not written; a second ``set_up`` replaces the first."""
    set_up("a ", logging.DEBUG)
    set_up("b ", LEVEL.parse("Error"))
    for level in ("debug", "info", "warn", "error", "fatal"):
        logging.getLogger("x").log(LEVEL.parse(level), "text of %s", level)

    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2][27:] for line in lines] == [
        "ERROR: text of error",
        "FATAL: text of fatal",
    ]


def test_an_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are escaped: a text can neither forge a line nor move the cursor."""
    set_up("", logging.INFO)
    logging.getLogger("x").info("topic %s", "a\n\r\t\x1b[31m\x85b\u2028\u202e")

    text = "INFO: topic a\\n\\r\\t\\x1b[31m\\x85b\\u2028\\u202e\n"
    assert capsys.readouterr().err.endswith(text)


def test_a_traceback_is_logged_with_indented_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is logged with every line indented, so that none looks like a log line."""
    set_up("", logging.INFO)
    try:
        raise ZeroDivisionError("x\n2026/01/01 FATAL: forged\r\x1b[2J")
    except ZeroDivisionError:
        logging.getLogger("x").exception("panic")

    text = capsys.readouterr().err
    assert "ERROR: panic\n    Traceback" in text
    assert "    ZeroDivisionError: x\n    2026/01/01 FATAL: forged\\r\\x1b[2J\n" in text
    assert 1 == sum(not line.startswith("    ") for line in text.splitlines())


def test_json_logs_are_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A JSON line has time in UTC, level, program, text and logger, extra fields and traceback."""
    set_up("[nsqd] ", logging.INFO, "json")
    logging.getLogger("x").warning("topic %s", "a\n\x1b\u2028\udc80", extra={"topic": "a"})
    try:
        raise ZeroDivisionError("y")
    except ZeroDivisionError:
        logging.getLogger("x").exception("panic")

    first, second = map(json.loads, capsys.readouterr().err.split("\n")[:-1])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first.pop("time"))
    assert first == {
        "level": "WARNING",
        "program": "nsqd",
        "text": "topic a\n\x1b\u2028\udc80",
        "logger": "x",
        "topic": "a",
    }
    assert "ZeroDivisionError: y" in second["traceback"]


def test_time_is_local_or_utc(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are local, as NSQ's, or UTC with `utc`."""
    monkeypatch.setenv("TZ", "XXX-5")
    time.tzset()
    try:
        for utc in (False, True):
            set_up("", logging.INFO, utc=utc)
            logging.getLogger("x").info("y")
    finally:
        monkeypatch.undo()
        time.tzset()

    local, utc = (
        datetime.strptime(line[:26], "%Y/%m/%d %H:%M:%S.%f")
        for line in capsys.readouterr().err.splitlines()
    )
    assert timedelta(hours=5, seconds=-10) < local - utc <= timedelta(hours=5)


def test_repeated_lines_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two lines of a kind, only their number is logged; kinds differ by text and level."""
    all_are_logged = threading.Event()

    class HeldTimer(threading.Timer):
        """A timer whose interval begins only when all lines are logged, however long that takes."""

        def run(self) -> None:
            all_are_logged.wait()
            super().run()

    monkeypatch.setattr(log_lines, "REPEAT_SECONDS", 0.05)
    monkeypatch.setattr(threading, "Timer", HeldTimer)
    set_up("", logging.INFO, repeats=2)
    logger = logging.getLogger("x")
    for number in range(1005):
        logger.info("client %d", number)
    for text in ("a", "b", "c"):
        logger.info("%s", text)
    logger.warning("client %d", 7)
    lines = capsys.readouterr().err.splitlines()

    assert ["client 0", "client 1", "a", "b", "c", "client 7"] == [
        line.split(": ", 1)[1] for line in lines
    ]
    all_are_logged.set()
    summary = wait_for(lambda: capsys.readouterr().err)
    assert summary.endswith("INFO: 1,003 more in a minute: client %d\n")
    logger.info("client %d", 8)
    assert "INFO: client 8" in capsys.readouterr().err


def test_closing_the_handler_logs_the_number_of_omitted_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Closing the handler logs the number of omitted lines immediately."""
    set_up("", logging.INFO, repeats=1)
    for number in range(3):
        logging.getLogger("x").info("client %d", number)
    logging.getLogger().handlers[0].close()

    assert "INFO: 2 more in a minute: client %d" in capsys.readouterr().err


def test_texts_above_kinds_max_are_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    """After KINDS_MAX different texts, further ones are counted together."""
    set_up("", logging.INFO, repeats=1)
    for number in range(KINDS_MAX + 10):
        logging.getLogger("x").info("%s", f"text {number}")
    logging.getLogger().handlers[0].close()
    lines = capsys.readouterr().err.splitlines()

    assert KINDS_MAX + 2 == len(lines)
    assert lines[-1].endswith("INFO: 9 more in a minute: %s")


def test_level_names_are_parsed_and_formatted() -> None:
    """Level names are accepted in any case; others raise ValueError with the list of names."""
    assert [LEVEL.show(LEVEL.parse(n)) for n in ("DEBUG", "Warn")] == ['"debug"', '"warn"']
    with pytest.raises(ValueError, match="one of debug, info, warn, error, fatal"):
        LEVEL.parse("warning")
