"""The document format of policies, in a file and over `/policies`.

    [[policies]]
    topic = "clicks*"
    channel = "archive"
    max_channel_lag_time = "24h"

1. A document is TOML, or JSON with the same structure. Settings have the keys and types of nsqd's
   configuration file: a duration is a text such as "24h", or a number of milliseconds.
2. A document is accepted as a whole or not at all; an error names the number of the policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Any, Final

from sparq.broker.options import QueueSettings
from sparq.broker.policies import Policy, PolicyError, check
from sparq.options.declare import flags_of
from sparq.options.mistakes import nearest, shown

BYTES_MAX: Final = 256 << 10
"""Maximum size of a document."""

KEY: Final = "policies"
FLAGS: Final = {flag.key: flag for flag in flags_of(QueueSettings)}
BY_FIELD: Final = {flag.field: flag for flag in FLAGS.values()}
"""The flags by the fields of `QueueSettings`, in the order of their keys."""
_PATTERNS: Final = ("topic", "channel")


class DocumentError(ValueError):
    """The document is not valid; the text says what is wrong and what to write instead."""


def read_file(path: str) -> tuple[Policy, ...]:
    """Read the policies of a TOML file; no path: none. DocumentError names the file."""
    if not path:
        return ()
    try:
        return read(Path(path).read_bytes(), is_toml=True)
    except OSError as error:
        raise DocumentError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error


def read(text: bytes, *, is_toml: bool) -> tuple[Policy, ...]:
    """Read the policies of a document.

    Raises:
        DocumentError: it is not a document of policies, or a policy is wrong.
    """
    if len(text) > BYTES_MAX:
        raise DocumentError(f"the document is {len(text)} bytes long; the maximum is {BYTES_MAX}")
    try:
        parse = import_module("tomllib").loads if is_toml else json.loads
        document = parse(text.decode())
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"invalid {'TOML' if is_toml else 'JSON'}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get(KEY, []), list):
        raise DocumentError(f'not a policy document: write {{"{KEY}": [{{"topic": "a*", ...}}]}}')
    for name in document:
        if name != KEY:
            raise DocumentError(f"unknown key {shown(name)}: write [[{KEY}]] for each policy")
    policies = tuple(_policy(n, entry) for n, entry in enumerate(document.get(KEY, []), 1))
    try:
        check(policies)
    except PolicyError as error:
        raise DocumentError(str(error)) from error
    return policies


def _policy(number: int, entry: object) -> Policy:
    where = f"policy {number}"
    if not isinstance(entry, dict):
        raise DocumentError(f"{where} is not a table with a topic pattern and settings")
    settings = dict(entry)
    patterns = {key: settings.pop(key, "") for key in _PATTERNS}
    for key, pattern in patterns.items():
        if not isinstance(pattern, str) or (key in entry and not pattern):
            raise DocumentError(f"{where}: {key} must be a name, or a pattern with * and ?")
    if "topic" not in entry:
        raise DocumentError(f'{where} has no topic: use "*" for all topics')
    if not settings:
        raise DocumentError(f"{where} has no settings: set one or more of {', '.join(FLAGS)}")
    for key in settings:
        if key not in FLAGS:
            found = nearest(key.replace("-", "_").lower(), (*FLAGS, *_PATTERNS))
            hint = f"did you mean {found}?" if found else f"use one of {', '.join(FLAGS)}"
            raise DocumentError(f"{where}: unknown setting {shown(key)}: {hint}")
    values = {FLAGS[key].field: _value(where, key, given) for key, given in settings.items()}
    return Policy(**patterns, settings=values)


def _value(where: str, key: str, given: object) -> int:
    flag = FLAGS[key]
    try:
        value = flag.kind.coerce(given)
    except ValueError as error:
        raise DocumentError(f"{where}: {key} = {shown(str(given))}: {error}") from error
    try:
        flag.check(value)
    except ValueError as error:
        what_to_do = str(error).partition(": ")[2]
        raise DocumentError(f"{where}: {key} = {flag.kind.show(value)}: {what_to_do}") from error
    return int(value)


def entries(policies: Iterable[Policy]) -> list[dict[str, Any]]:
    """Return policies in the form of a document."""
    return [
        {"topic": policy.topic}
        | ({"channel": policy.channel} if policy.channel else {})
        | dict(starmap(setting, policy.settings.items()))
        for policy in policies
    ]


def setting(field: str, value: int) -> tuple[str, int | str]:
    """Return the document's key of a field of `QueueSettings`, and the value in its form."""
    flag = BY_FIELD[field]
    if flag.kind.name == "bool":
        return flag.key, bool(value)
    return flag.key, value if flag.kind.name == "int" else flag.kind.show(value)
