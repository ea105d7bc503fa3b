"""A daemon's options with some values of its own."""

from typing import Any, TypeVar

from sparq.program.flags import flags_of, replaced

T = TypeVar("T")


def changed(options: T, **values: Any) -> T:
    """Options with other values, each by its key in a file and as a user gives it (ns)."""
    flags = {flag.key: flag for flag in flags_of(type(options))}
    held = {flags[key].field: flags[key].kind.held(value) for key, value in values.items()}
    return replaced(options, held)


def value(options: object, key: str) -> Any:
    """An option's value, as a user gives it."""
    (found,) = (flag.value(options) for flag in flags_of(type(options)) if flag.key == key)
    return found
