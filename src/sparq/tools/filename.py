"""Names of output files: a template whose fields are filled in, and dates in `strftime` format.

1. The fields are `<TOPIC>`, `<HOST>`, `<PID>`, `<DATETIME>` and `<REV>`. Nothing else in a template
   is special, and inserted values are not expanded again.
2. A name is a relative path below some folder: it has no `..` and no unprintable characters, and a
   leading `/` is ignored. A name that leads elsewhere is refused, wherever it came from.
3. Of `strftime`, the conversions that NSQ has are supported, in English and in local time; any
   other `%` sequence stays as it is.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

REVISION: Final = "<REV>"
GZIP_SUFFIX: Final = ".gz"
ENTRY_BYTES_MAX: Final = 255
"""Longest file or folder name that file systems accept, in bytes."""

_PLACES: Final = re.compile("<(?:TOPIC|HOST|PID|DATETIME|REV)>")
_PLACES_AND_REST: Final = re.compile(f"{_PLACES.pattern}|.", re.DOTALL)
_HOST_PLACES: Final = re.compile("<(?:SHORT_HOST|HOSTNAME)>")
_CONVERSIONS: Final = re.compile("%[BbmAadHIMSYypZz%]")


class FilenameError(ValueError):
    """A template yields no name of a file below a folder; the text says why."""


def strftime(format_text: str, when: datetime) -> str:
    """Format the date with the conversions that NSQ supports."""
    return _CONVERSIONS.sub(lambda found: when.strftime(found[0]), format_text)


def host_identifier(text: str) -> str:
    """Return the value of `<HOST>`: the short host name, or the text with its fields filled in."""
    host = socket.gethostname()
    names = {"<SHORT_HOST>": host.partition(".")[0], "<HOSTNAME>": host}
    return _fill(_HOST_PLACES, text or "<SHORT_HOST>", names)


def _fill(places: re.Pattern[str], text: str, values: Mapping[str, str]) -> str:
    return places.sub(lambda found: values.get(found[0], found[0]), text)


def entries(name: str) -> tuple[str, ...]:
    """Split a path below a folder into its entries: folders, then the file's name.

    Raises:
        FilenameError: it leads out of the folder, or names no file in it.
    """
    if not name.isprintable():
        raise FilenameError(f"the file name {name!r} has unprintable characters")
    found = tuple(entry for entry in name.split("/") if entry not in ("", "."))
    if ".." in found:
        raise FilenameError(f"the file name {name!r} leads out of its folder")
    if not found:
        raise FilenameError(f"the file name {name!r} does not name a file")
    if long := next((entry for entry in found if len(os.fsencode(entry)) > ENTRY_BYTES_MAX), ""):
        raise FilenameError(f"the file name {long:.40}... is longer than {ENTRY_BYTES_MAX} bytes")
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """The names of one topic's files.

    Attributes:
        text: the name with its fields.
        datetime_format: the `strftime` format of the date in it.
        topic: the topic.
        host: the value of `<HOST>`.
    """

    text: str
    datetime_format: str
    topic: str
    host: str

    def at(self, when: datetime) -> str:
        """Return the name at this time; `<REV>` is not filled in yet."""
        values = {
            "<TOPIC>": self.topic,
            "<HOST>": self.host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": strftime(self.datetime_format, when),
        }
        return _fill(_PLACES, self.text, values)

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches every name of this template, at any time, of any process.

        Each `<REV>` is a group.
        """
        values = {"<PID>": "[0-9]+", "<DATETIME>": ".*", REVISION: "(-[0-9]{6,})"}
        values |= {"<TOPIC>": re.escape(self.topic), "<HOST>": re.escape(self.host)}
        parts = _PLACES_AND_REST.findall(self.text)
        return re.compile("".join(values.get(part) or re.escape(part) for part in parts))


def template(
    filename_format: str,
    datetime_format: str,
    topic: str,
    identifier: str,
    *,
    is_revised: bool,
    is_gzip: bool,
) -> Template:
    """Return the template of a topic's files.

    Args:
        filename_format: `--filename-format`.
        datetime_format: `--datetime-format`.
        topic: the topic.
        identifier: `--host-identifier`.
        is_revised: whether several files may have names that differ only in the revision; if not,
            `<REV>` is removed.
        is_gzip: whether the name must end in `.gz`.
    Raises:
        FilenameError: `<REV>` is missing, or the format yields no name below a folder.
    """
    if is_revised and REVISION not in filename_format:
        raise FilenameError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    text = filename_format if is_revised else filename_format.replace(REVISION, "")
    if is_gzip and not text.endswith(GZIP_SUFFIX):
        text += GZIP_SUFFIX
    made = Template(text, datetime_format, topic, host_identifier(identifier))
    entries(with_revision(made.at(datetime.now().astimezone()), 0))
    return made


def with_revision(name: str, revision: int) -> str:
    """Return the name with its revision: a dash and six digits."""
    return name.replace(REVISION, f"-{revision:06d}")
