"""Names of output files: a template whose places are filled in, and dates as `strftime` has them.

1. Places are `<TOPIC>`, `<HOST>`, `<PID>`, `<DATETIME>` and `<REV>`; nothing else in a template is
   special, and what was filled in is not looked through again.
2. A name is a path of plain entries below some folder: it has no `..` and nothing unprintable, and
   a leading `/` means nothing. What would lead elsewhere is refused, wherever it came from.
3. Of `strftime` there are the conversions that NSQ has, in English and in local time; what stands
   behind another `%` stays as it is.
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
"""What file systems take of a name."""

_PLACES: Final = re.compile("<(?:TOPIC|HOST|PID|DATETIME|REV)>")
_PLACES_AND_REST: Final = re.compile(f"{_PLACES.pattern}|.", re.DOTALL)
_HOST_PLACES: Final = re.compile("<(?:SHORT_HOST|HOSTNAME)>")
_CONVERSIONS: Final = re.compile("%[BbmAadHIMSYypZz%]")


class FilenameError(ValueError):
    """A template makes no name of a file below a folder; the text says why."""


def strftime(format_text: str, when: datetime) -> str:
    """The date by NSQ's part of `strftime`."""
    return _CONVERSIONS.sub(lambda found: when.strftime(found[0]), format_text)


def host_identifier(text: str) -> str:
    """What `<HOST>` stands for: the short host name, or a text with places for host names."""
    host = socket.gethostname()
    names = {"<SHORT_HOST>": host.partition(".")[0], "<HOSTNAME>": host}
    return _fill(_HOST_PLACES, text or "<SHORT_HOST>", names)


def _fill(places: re.Pattern[str], text: str, values: Mapping[str, str]) -> str:
    return places.sub(lambda found: values.get(found[0], found[0]), text)


def entries(name: str) -> tuple[str, ...]:
    """The entries of a path below a folder: folders, and the file's name last.

    Raises:
        FilenameError: it would lead out of the folder, or to no file in it.
    """
    if not name.isprintable():
        raise FilenameError(f"the file name {name!r} has characters that are not printable")
    found = tuple(entry for entry in name.split("/") if entry not in ("", "."))
    if ".." in found:
        raise FilenameError(f"the file name {name!r} leads out of its folder")
    if not found:
        raise FilenameError(f"the file name {name!r} names no file")
    if long := next((entry for entry in found if len(os.fsencode(entry)) > ENTRY_BYTES_MAX), ""):
        raise FilenameError(f"the file name {long:.40}... is longer than {ENTRY_BYTES_MAX} bytes")
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """What the files of one topic are called.

    Attributes:
        text: the name with its places.
        datetime_format: the date in it, for `strftime`.
        topic: the topic.
        host: what `<HOST>` stands for.
    """

    text: str
    datetime_format: str
    topic: str
    host: str

    def at(self, when: datetime) -> str:
        """The name at this time; the place of the revision is still in it."""
        values = {
            "<TOPIC>": self.topic,
            "<HOST>": self.host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": strftime(self.datetime_format, when),
        }
        return _fill(_PLACES, self.text, values)

    def pattern(self) -> re.Pattern[str]:
        """What all names of this template look like, at whatever time and of whatever process.

        Its groups are the places of the revision.
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
    """The template of a topic's files.

    Args:
        filename_format: `--filename-format`.
        datetime_format: `--datetime-format`.
        topic: the topic.
        identifier: `--host-identifier`.
        is_revised: whether several files may have one name but for the revision; else the
            revision's place is taken out.
        is_gzip: whether the name has to end in `.gz`.
    Raises:
        FilenameError: there is no place for the revision, or no name below a folder comes of it.
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
    """The name with its revision, six digits behind a dash."""
    return name.replace(REVISION, f"-{revision:06d}")
