"""Changed options of a daemon, and their values in the user's units."""

from typing import Any, TypeVar

from sparq.options.declare import flags_of, replaced

T = TypeVar("T")


def changed(options: T, **values: Any) -> T:
    """Return options with other values, each by its key in a file and in the user's unit (ns)."""
    flags = {flag.key: flag for flag in flags_of(type(options))}
    held = {flags[key].field: flags[key].kind.held(value) for key, value in values.items()}
    return replaced(options, held)


def value(options: object, key: str) -> Any:
    """Return an option's value in the user's unit."""
    (found,) = (flag.value(options) for flag in flags_of(type(options)) if flag.key == key)
    return found
