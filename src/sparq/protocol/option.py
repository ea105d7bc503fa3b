"""Declares dataclass fields as options that a user sets by flags or in a program's config file.

A declaration is metadata of the field, from which `sparq.program.flags` makes a flag. The code uses
the dataclass itself as its options.

1. A field whose type is such a dataclass is a group of options; its metadata may have a `prefix`.
2. The flag is the prefix of the group followed by the field's name, with dashes for underscores.
3. A field that ends in `_ns` or `_ms` is a duration in that unit; the flag has no such ending.
4. Any other field has the type of its annotation, unless the declaration has a `kind`.
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
        default: the value if neither flag nor file sets it; a callable is called for the value; a
            tuple makes the flag repeatable.
        text: the help text for `--help`.
        kind: how the value is parsed, a `program.flag_types.FlagType`.
        name: the whole name of the flag, if it differs from the derived one.
        key: the key in the file, if it is not the flag's name with underscores.
        least: the smallest allowed value, in the field's unit.
        most: the largest allowed value, or the name of a field of the same dataclass that holds it.
        live: the component that applies the option at SIGHUP, such as `log`; empty: a restart is
            needed.
        secret: leave the value out of the `repr` of the options.
    """
    metadata = {"text": text, "kind": kind, "name": name, "key": key}
    metadata |= {"least": least, "most": most, "live": live}
    if callable(default):
        return dataclasses.field(default_factory=default, repr=not secret, metadata=metadata)
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)
