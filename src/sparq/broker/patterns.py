"""Patterns of an authd: regular expressions that are searched for in names.

NSQ's are Go's (RE2), which never backtracks. `google-re2` is that engine, and is used if it is
installed (the extra `regex`). Python's own backtracks, and one bad pattern would block every client
of an nsqd. Without `google-re2`, only patterns are accepted whose meaning is the same in both
languages and whose longest search is short: without repeated groups, and with few choices.
"""

from __future__ import annotations

import re
from importlib import import_module
from math import factorial, prod
from typing import Any, Final, Protocol

from sparq.protocol.names import NAME_SIZE_MAX

try:
    re2: Any = import_module("re2")
except ImportError:
    re2 = None

COST_MAX: Final = 4_000_000
"""Steps of the longest search: with Python's engine about 30 ms."""
PATTERN_BYTES_MAX: Final = 1 << 20  # memory of a compiled pattern of `google-re2`
TEXT_MAX: Final = 8 << 10

_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
"""What JSON may contain, but UTF-8 may not."""
_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escape or a class: nothing in it is an operator."""
_SHARED_ESCAPE: Final = re.compile(r"\\(?:[dDwWsSbBAzfnrtv]|(?![0-9A-Za-z])[\0-\x7f])")
# What means something else in Go, or is not there.
_OTHER_CLASS: Final = re.compile(r"\[\^?\[|\[:|--|&&|~~|\|\|")
_OTHER_OPERATOR: Final = re.compile(r"\(\?(?!:)|\)[*+{]|\{,|[*+?}]\+")
_REPEAT: Final = re.compile(r"(?:[*+]|\{\d+,\d*\})\??")


class PatternError(ValueError):
    """A pattern is invalid, or needs `google-re2`; the text says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    def search(self, name: str, /) -> Any:
        """Find it anywhere in a name; None: it is not there."""


def compiled(text: str) -> tuple[Pattern, int]:
    """Compile a pattern; also returns the cost of its longest search, in steps.

    Raises:
        PatternError: see there.
    """
    if len(text) > TEXT_MAX:
        raise PatternError(f"it has more than {TEXT_MAX:,} characters")
    if _HALF_CHARACTER.search(text):
        raise PatternError("it has half of a surrogate pair, which no name contains")
    if re2 is not None:
        options = re2.Options()
        options.log_errors, options.max_mem = False, PATTERN_BYTES_MAX
        try:
            return re2.compile(text, options), NAME_SIZE_MAX
        except re2.error as error:
            raise PatternError(str(error.args[0])) from None
    plain = text.removeprefix("(?i)")
    atoms, operators = _ATOM.findall(plain), _ATOM.sub("x", plain)
    left = _SHARED_ESCAPE.sub("", "".join(atoms))
    is_shared = "\\" not in left and not any(map(_OTHER_CLASS.search, atoms))
    cost = _cost(operators, is_anchored=plain.startswith(("^", r"\A")))
    if not is_shared or _OTHER_OPERATOR.search(operators) or cost > COST_MAX:
        raise PatternError("it needs the package google-re2 (pip install 'sparq-mq[regex]')")
    # The end of a text, which Python 3.11 calls \Z.
    python = _ATOM.sub(lambda one: r"\Z" if one[0] == r"\z" else one[0], plain)
    try:
        return re.compile(python, re.ASCII | (re.IGNORECASE if plain != text else 0)), cost
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(str(error)) from None


def _cost(operators: str, *, is_anchored: bool) -> int:
    """The longest search in a name, in steps: each repeat, choice and start multiplies it."""
    if operators in ("", ".*", ".+"):
        return 1
    repeats = len(_REPEAT.findall(operators))
    choices, groups = [1], [1]  # alternatives of closed groups, and of open ones
    for sign in _REPEAT.sub("", operators).replace("(?:", "("):
        if sign == "(":
            groups.append(1)
        elif sign == "|":
            groups[-1] += 1
        elif sign == ")" and len(groups) > 1:
            choices.append(groups.pop())
        elif sign == "?":
            choices.append(2)
    repeats += not is_anchored or groups[0] > 1
    steps = NAME_SIZE_MAX ** min(repeats, 6) // factorial(min(repeats, 6))
    return int(steps * prod(choices + groups))
