"""Read a program's TOML file into values.

1. Each option is a key at the top level. Messages about an unusable file or a value of the wrong
   type use NSQ's wording.
2. NSQ ignores unknown keys and sections; here they are returned as sentences, and the caller
   decides.
3. A bare number is a duration in milliseconds. A list may be written as one string with commas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sparq.program.flag_types import LEVEL, TLS_REQUIRED, TLS_VERSION, Flag
from sparq.program.mistakes import nearest, shown

_PARSED = (LEVEL, TLS_REQUIRED, TLS_VERSION)
"""Kinds that NSQ parses itself when they come from a file; their errors have their own wording."""


class FileError(Exception):
    """A configuration file cannot be used; the text is one sentence."""


def read(path: str) -> dict[str, Any]:
    """Load the file. Raises FileError: it is missing, unreadable or not valid TOML."""
    try:
        # Imported here: a start without a file does not pay for it.
        document: dict[str, Any] = import_module("tomllib").loads(
            Path(path).read_text(encoding="utf-8")
        )
    except OSError as error:
        reason = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise FileError(f"failed to load config file {path} - {reason}") from error
    except ValueError as error:
        raise FileError(f"failed to load config file {path} - {error}") from error
    return document


def values(document: dict[str, Any], flags: Iterable[Flag]) -> dict[str, Any]:
    """Return the file's values by field. Raises FileError: a value has the wrong type."""
    return {flag.field: _coerce(flag, document[flag.key]) for flag in flags if flag.key in document}


def unknown(
    path: str, document: dict[str, Any], flags: Sequence[Flag], sections: Sequence[str] = ()
) -> list[str]:
    """Return a sentence for each key and section that matches no flag; `sections` may be meant."""
    meant = {flag.name.replace("-", "_"): flag.key for flag in flags}
    meant.update({flag.key: flag.key for flag in flags})
    sentences = []
    for key, value in document.items():
        if key in meant.values():
            continue
        if isinstance(value, dict) and (found := nearest(key, sections)):
            reason = f"there is no section [{key}]: did you mean [{found}]?"
        elif isinstance(value, dict):
            reason = f"there is no section [{key}]: write its options at the top, without sections"
        else:
            found = nearest(key.replace("-", "_").lower(), meant)
            close = f": did you mean {meant[found]}?" if found else ": remove it"
            reason = f"there is no option {shown(key)}{close}"
        sentences.append(f"config file {path}: {reason}")
    return sentences


def _coerce(flag: Flag, value: Any) -> Any:
    try:
        if not flag.repeated:
            return flag.kind.coerce(value)
        if isinstance(value, str):
            value = value.split(",") if value else []
        if not isinstance(value, list):
            raise ValueError(f"invalid list value type {type(value).__name__}")
        return flag.kind.gather(flag.kind.coerce(item) for item in value)
    except ValueError as error:
        if flag.kind in _PARSED:
            raise FileError(f"failed parsing {flag.key} {value} - {error}") from error
        raise FileError(
            f"ERROR: Resolve failed to coerce value {value} for option {flag.key} - {error}"
        ) from error
