"""How a dataclass declares that a user sets its fields, by flags or in a program's file.

A declaration is data beside the field, of which `sparq.program.flags` makes a flag. The dataclass
itself is the value that the code takes.

1. A field with such a dataclass is a group of options; its metadata may have a `prefix`.
2. The flag is the field's name with dashes, after the prefix of its group.
3. A field that ends in `_ns` or `_ms` is a duration in that unit; the flag has no such ending.
4. The type of another field is that of its annotation, unless the declaration has a `kind`.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def option(
    default: Any,
    text: str,
    *,
    kind: object = None,
    name: str = "",
    key: str = "",
    least: int | float | None = None,
    most: int | float | str | None = None,
    live: str = "",
    secret: bool = False,
) -> Any:
    """Declare a dataclass field as an option.

    Args:
        default: the value without flag and file; a function is called for it; a tuple makes the
            flag repeatable.
        text: what `--help` says.
        kind: how it is read, a `program.kinds.Kind`.
        name: the whole name of the flag, if it is another one.
        key: the key in the file, if it is not the flag's name with underscores.
        least: the smallest value that may be given, in the field's unit.
        most: the largest one, or the name of the field beside this one that holds it.
        live: what takes the option at SIGHUP, such as `log`; empty: it needs a restart.
        secret: leave the value out of the `repr` of the options.
    """
    told = {"text": text, "kind": kind, "name": name, "key": key}
    told |= {"least": least, "most": most, "live": live}
    if callable(default):
        return dataclasses.field(default_factory=default, repr=not secret, metadata=told)
    return dataclasses.field(default=default, repr=not secret, metadata=told)
