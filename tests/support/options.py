"""Changed options of a daemon, and their values in the user's units."""

from typing import Any, TypeVar

from sparq.options.declare import flags_of, replaced

T = TypeVar("T")


def changed(options: T, **values: Any) -> T:
    """Return options with other values, each by its key in a file and in the user's unit (ns)."""
    flags = {flag.key: flag for flag in flags_of(type(options))}
    units = {key: flags[key].kind.unit for key in values}
    held = {
        flags[key].field: given if units[key] == 1 else given // units[key]
        for key, given in values.items()
    }
    return replaced(options, held)


def value(options: object, key: str) -> Any:
    """Return an option's value in the user's unit."""
    (flag,) = (flag for flag in flags_of(type(options)) if flag.key == key)
    found = flag.value(options)
    return found if flag.kind.unit == 1 else found * flag.kind.unit
