"""Declare options: each is a field of a dataclass, with its flag, bounds, default and help text.

A declaration is metadata of the field (`option`); `flags_of` makes flags of a class. The code uses
the dataclass itself as its options.

1. A field whose type is such a dataclass is a `group` of options.
2. The flag is the prefix of the group followed by the field's name, with dashes for underscores.
3. A field that ends in `_ns` or `_ms` is a duration in that unit; the flag has no such ending.
4. Any other field has the type of its annotation, unless the declaration has a `kind`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from sparq.options.kinds import DURATION, Kind, kind_of
from sparq.options.mistakes import Mistake, shown

T = TypeVar("T")


def option(
    default: Any,
    text: str,
    *,
    kind: Kind | None = None,
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
        kind: how the value is parsed.
        name: the whole name of the flag, if it differs from the derived one.
        key: the key in the file, if it is not the flag's name with underscores.
        least: the smallest allowed value, in the field's unit.
        most: the largest allowed value, or the name of a field of the same dataclass that holds it.
        live: the component that applies the option at SIGHUP, such as `log`; empty: a restart is
            needed.
        secret: leave the value out of the `repr` of the options.
    """
    metadata = {
        **{"text": text, "kind": kind, "name": name, "key": key},
        **{"least": least, "most": most, "live": live},
    }
    if callable(default):
        return dataclasses.field(default_factory=default, repr=not secret, metadata=metadata)
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def group(make: Callable[[], Any], prefix: str = "") -> Any:
    """Declare a field that holds a group of options; `prefix` begins the names of their flags."""
    return dataclasses.field(default_factory=make, metadata={"prefix": prefix})


def described(options_class: type[T]) -> type[T]:
    """Add the texts of a class's own options to its docstring, as its attributes, for `help`."""
    own = vars(options_class)["__annotations__"]
    attributes = "".join(
        f"\n    {field.name}: {field.metadata['text']}"
        for field in dataclasses.fields(options_class)  # type: ignore[arg-type]  # a dataclass
        if field.name in own
    )
    about = inspect.cleandoc(options_class.__doc__ or "")
    options_class.__doc__ = f"{about}\n\nAttributes:{attributes}\n"
    return options_class


class Flag(NamedTuple):
    """One flag; its values are in the unit of its field.

    Attributes:
        field: the field it sets; "tls.cert" is field "cert" of the dataclass in field "tls".
        most: the largest value, or the name of the field that holds it.
        live: the component that applies the option at SIGHUP, see `option`.
    """

    name: str
    field: str
    key: str
    kind: Kind
    repeated: bool
    help: str
    default: Any
    least: int | float | None = None
    most: int | float | str | None = None
    live: str = ""

    def value(self, options: object) -> Any:
        """Return the flag's value in these options."""
        return attrgetter(self.field)(options)

    def shown(self, value: Any) -> str:
        """Format a value as `--help` does; empty: there is none."""
        values = value if self.repeated else () if value is None else (value,)
        return ", ".join(map(self.kind.show, values))

    def check(self, value: Any) -> None:
        """Check one value of the right type. ValueError: the end of a sentence about it."""
        self.kind.check(value)
        if self.least is not None and value < self.least:
            if self.kind is DURATION and self.least == 1:
                raise ValueError("should be positive")
            raise ValueError(f"is too small: use {self.kind.show(self.least)} or more")
        if self.most is not None and not isinstance(self.most, str) and value > self.most:
            raise ValueError(f"is too large: use {self.kind.show(self.most)} or less")

    def settled(self, value: Any) -> Any:
        """Return a value from code or a file, checked and in its one spelling.

        Several values are a list, or one text with commas; pairs may also be a mapping.

        Raises:
            Mistake: the value is wrong; the sentence begins with the flag.
        """
        if not self.repeated:
            return self._one(value)
        if self.kind.is_pairs and isinstance(value, Mapping):
            value = list(value.items())
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple):
            raise Mistake(f"--{self.name}: write a list of texts")
        if not self.kind.is_pairs:
            parts = [part.strip() for each in value for part in str(each).split(",")]
            value = dict.fromkeys(filter(None, parts))
        return tuple(dict.fromkeys(self.kind.gather(map(self._one, value))))

    def _one(self, value: Any) -> Any:
        try:
            found = self.kind.coerce(value)
            self.check(found)
        except ValueError as error:
            # Pairs may be secret: their values are left out.
            text = "" if self.kind.is_pairs else f"={shown(str(value))}"
            between = "" if text and str(error).startswith(("is ", "has ")) else ":"
            raise Mistake(f"--{self.name}{text}{between} {error}") from None
        return found


def flags_of(options_class: type) -> list[Flag]:
    """Return the flags of an options dataclass in alphabetical order."""
    return sorted(_flags(options_class, "", ""), key=lambda flag: flag.name)


def _flags(source: Any, path: str, prefix: str) -> Iterator[Flag]:
    """Yield the flags of a dataclass with its defaults, or of an instance with its values."""
    for field in dataclasses.fields(source):
        default = _default(field) if isinstance(source, type) else getattr(source, field.name)
        metadata = field.metadata
        if dataclasses.is_dataclass(default):
            yield from _flags(default, f"{path}{field.name}.", metadata.get("prefix", ""))
        elif "text" in metadata:
            kind = metadata["kind"] or kind_of(field)
            bare = field.name.removesuffix("_ns").removesuffix("_ms")
            name = metadata["name"] or prefix + bare.replace("_", "-")
            most = metadata["most"]
            yield Flag(
                name,
                path + field.name,
                metadata["key"] or name.replace("-", "_"),
                kind,
                isinstance(default, tuple),
                metadata["text"],
                default,
                metadata["least"],
                path + most if isinstance(most, str) else most,
                metadata["live"],
            )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def replaced(options: T, values: Mapping[str, Any]) -> T:
    """Return a copy with other values in some fields ("tls.cert"), in the fields' own units."""
    changes: dict[str, Any] = {}
    for field, value in values.items():
        name, _, inner = field.partition(".")
        if inner:
            changes[name] = replaced(changes.get(name, getattr(options, name)), {inner: value})
        else:
            changes[name] = value
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]  # it is a dataclass


def differing(old: T, new: T) -> list[Flag]:
    """Return the flags whose values differ between two instances of one options class."""
    return [flag for flag in flags_of(type(old)) if flag.value(old) != flag.value(new)]
