"""What a value must be beyond its type: within bounds, one of a few words, an address.

1. Only what the user gave is held to it: a default that another option overtakes is no mistake.
2. NSQ starts with most of these values, and does something else than what was meant. So each is a
   sentence, which ends a program, or is a warning under `--go-compatible`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparq.program.mistakes import shown

if TYPE_CHECKING:
    from sparq.program.flags import Flag


def beyond(
    options: Any,
    given: Sequence[Flag],
    flags: Sequence[Flag],
    on_command_line: Collection[str],
    path: str,
) -> list[str]:
    """A sentence for each value that is not what it must be.

    Args:
        options: all values.
        given: the flags that the user gave.
        flags: all flags.
        on_command_line: the fields that the command line gave; the others of `given` come from
            the file at `path`.
        path: the configuration file, if there is one.
    """
    by_field = {flag.field: flag for flag in flags}
    sentences = []
    for flag in given:
        value = getattr(options, flag.field)
        reason = _reason(flag, value, options, by_field)
        if not reason:
            continue
        text, why = reason
        if flag.field in on_command_line:
            sentences.append(f"--{flag.name}={text} {why}")
        else:
            sentences.append(f"config file {path}: {flag.key} = {text} {why}")
    return sentences


def _reason(
    flag: Flag, value: Any, options: Any, by_field: Mapping[str, Flag]
) -> tuple[str, str] | None:
    """The value that is wrong as a text, and what is wrong with it."""
    show = flag.kind.show
    for one in value if flag.repeated else [value]:
        try:
            flag.kind.check(one)
        except ValueError as error:
            return shown(str(one)), str(error)
    if flag.repeated or value is None:
        return None
    if flag.least is not None and value < flag.least:
        return show(value), f"is too small: use {show(flag.least)} or more"
    if isinstance(flag.most, str):
        most = getattr(options, flag.most)
        if value > most:
            name = by_field[flag.most].name
            return show(value), f"is above --{name} ({show(most)}): lower it, or raise --{name}"
    elif flag.most is not None and value > flag.most:
        return show(value), f"is too large: use {show(flag.most)} or less"
    return None
