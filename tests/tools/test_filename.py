"""Names of output files: what stands for what, which dates there are, and what is refused."""

import os
import socket
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.tools.filename import (
    FilenameError,
    Template,
    entries,
    host_identifier,
    strftime,
    template,
    with_revision,
)

WHEN = datetime(2026, 3, 5, 16, 7, 9, tzinfo=timezone(timedelta(hours=2), "EET"))
HOST = socket.gethostname()


def made(filename_format: str, topic: str = "clicks", **changes: bool) -> Template:
    """A template with a host of its own; no revision and no gzip unless asked for."""
    kinds = {"is_revised": False, "is_gzip": False, **changes}
    return template(filename_format, "%H", topic, "web", **kinds)


@pytest.mark.parametrize(
    ("format_text", "expected"),
    [
        ("%Y-%m-%d_%H", "2026-03-05_16"),
        ("%B %b %A %a %y", "March Mar Thursday Thu 26"),
        ("%I:%M:%S %p %Z %z", "04:07:09 PM EET +0200"),
        ("100%%", "100%"),
        ("%Q %j %", "%Q %j %"),
        ("%%H", "%H"),
        ("2006 Jan 15", "2006 Jan 15"),
    ],
)
def test_dates(format_text: str, expected: str) -> None:
    """NSQ's conversions are replaced, in English; anything else stays as it is."""
    assert expected == strftime(format_text, WHEN)


def test_every_place_is_filled_in_once() -> None:
    """What was filled in is not looked through: a host that reads like a place stays."""
    filled = Template("<TOPIC>/<HOST>.<PID><REV>.<DATETIME>.<X>", "%Y<TOPIC>", "t", "<PID>")

    assert f"t/<PID>.{os.getpid()}<REV>.2026<TOPIC>.<X>" == filled.at(WHEN)
    assert "a-000012.b" == with_revision("a<REV>.b", 12)


def test_the_host() -> None:
    """The short host name, unless a text says otherwise."""
    short = HOST.partition(".")[0]

    assert short == host_identifier("")
    assert f"a-{short}-{HOST}-<TOPIC>" == host_identifier("a-<SHORT_HOST>-<HOSTNAME>-<TOPIC>")


def test_the_revision_is_there_where_it_is_needed() -> None:
    """Without its place several files could not be told apart; where there is one, it goes."""
    assert "a<REV>" == made("a<REV>", is_revised=True).text
    assert "a.log" == made("a<REV>.log").text
    with pytest.raises(FilenameError, match="missing <REV> in --filename-format"):
        made("a", is_revised=True)


def test_gzip_shows_in_the_name() -> None:
    """Once."""
    assert "a.log.gz" == made("a.log", is_gzip=True).text
    assert "a.gz" == made("a.gz", is_gzip=True).text


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "./.", "..", "../a", "a/../b", "a/..", "a\0b", "a\nb", "a\u202eb", "\ud800"),
        *("a" * 256, "ä" * 128, f"{'a' * 256}/b"),
    ],
)
def test_what_leads_elsewhere_is_refused(name: str) -> None:
    """Out of the folder, to no file, or to what nobody could read or no file system takes."""
    with pytest.raises(FilenameError):
        entries(name)


def test_a_topic_may_not_be_the_folder_above() -> None:
    """It is a legal name, and harmless unless it becomes a folder."""
    assert "...web.16" == made("<TOPIC>.<HOST>.<DATETIME>", topic="..").at(WHEN)
    with pytest.raises(FilenameError, match="leads out of its folder"):
        made("<TOPIC>/<HOST>", topic="..")


@given(st.text(alphabet="ab./<>\0\n%TOPIC", max_size=20), st.sampled_from(["t", ".", "..", "..."]))
def test_no_template_leads_out(filename_format: str, topic: str) -> None:
    """Whatever a template says: its entries are plain ones, or it is refused."""
    try:
        found = entries(made(filename_format, topic).at(WHEN))
    except FilenameError:
        return

    assert found
    assert not any(entry in ("", ".", "..") or "/" in entry for entry in found)
    assert os.path.normpath("/".join(found)) == "/".join(found)
