"""Regular expressions in Go's syntax, matched against names in linear time.

An authd uses patterns to say which topics and channels a client may use. They are Go's (RE2), which
never backtracks. Python's `re` does, and one bad pattern would block every client of an nsqd. So:

1. A pattern is compiled to a small program; all its threads advance together, one character per
   step. Time is at most instructions x characters, for any pattern.
2. A pattern that Go would not compile is refused: look-around, back references, repeats over 1,000,
   also nested ones whose product is over 1,000.
3. Names are ASCII. A non-ASCII character in a pattern is legal and matches nothing. `\\p{...}`
   supports only scripts that have ASCII characters.
4. The sizes of a pattern and its program are limited, and the caller may limit the steps as well.
   Even an empty group costs an instruction: the limit on these also limits the time to compile.
"""

from __future__ import annotations

import re
import sys
from typing import Final, NamedTuple, NoReturn
from unicodedata import category

INSTRUCTIONS_MAX: Final = 5_000
TEXT_MAX: Final = 8 << 10
"""Maximum characters of a pattern: enough for hundreds of names."""

REPEAT_MAX: Final = 1_000  # RE2's limit
DEPTH_MAX: Final = 50

# A set of characters is an integer with one bit for each: a shift tests whether it has a character.
ASCII: Final = (1 << 128) - 1


def _mask(characters: str) -> int:
    return sum(1 << ord(character) for character in set(characters))


_DIGITS: Final = _mask("0123456789")
_UPPER: Final = _mask("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER: Final = _mask("abcdefghijklmnopqrstuvwxyz")
_WORD: Final = _DIGITS | _UPPER | _LOWER | _mask("_")
_SPACE: Final = _mask("\t\n\f\r ")
_PRINTED: Final = ((1 << 127) - 1) & ~((1 << 32) - 1)
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_NAMED: Final = {
    "alnum": _DIGITS | _UPPER | _LOWER,
    "alpha": _UPPER | _LOWER,
    "ascii": ASCII,
    "blank": _mask("\t "),
    "cntrl": ASCII & ~_PRINTED,
    "digit": _DIGITS,
    "graph": _PRINTED & ~_mask(" "),
    "lower": _LOWER,
    "print": _PRINTED,
    "punct": _PRINTED & ~(_DIGITS | _UPPER | _LOWER | _mask(" ")),
    "space": _SPACE | _mask("\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _mask("0123456789abcdefABCDEF"),
}
_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS: Final = {"A": "begin", "z": "end", "b": "word", "B": "no word"}
_CATEGORIES: Final = (
    *("C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn"),
    *("N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps"),
    *("S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
)
_UNICODE: Final = {
    "Any": ASCII,
    "Latin": _UPPER | _LOWER,
    "Common": ASCII & ~(_UPPER | _LOWER),
    **{
        name: sum(1 << code for code in range(128) if category(chr(code)).startswith(name))
        for name in _CATEGORIES
    },
}
_METAS: Final = frozenset("\\.+*?()|[]{}^$")
_OCTALS: Final = re.compile("[0-7]{1,2}")
_SIGNS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS: Final = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")
_NAMED_CLASS: Final = re.compile(r"\[:(\^?)([a-z]+):\]")


class PatternError(ValueError):
    """Go would not compile the pattern, or its program is too large."""


class TooManySteps(Exception):
    """A match took more steps than allowed."""


class StepBudget:
    """The steps left for one decision, over all the patterns that it tries."""

    __slots__ = ("steps",)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def take(self, steps: int) -> None:
        """Subtract steps; raises TooManySteps if they exceed the steps left."""
        self.steps -= steps
        if self.steps < 0:
            raise TooManySteps


class _Step(NamedTuple):
    """An instruction: consume a character of `mask`, check an assertion, or, with neither, fork."""

    mask: int
    assertion: str
    targets: tuple[int, ...]


# The syntax tree of a pattern.


class _Characters(NamedTuple):
    mask: int


class _Assertion(NamedTuple):
    kind: str


class _Sequence(NamedTuple):
    nodes: tuple[_Node, ...]


class _Choice(NamedTuple):
    nodes: tuple[_Node, ...]


class _Repeat(NamedTuple):
    node: _Node
    least: int
    most: int | None


_Node = _Characters | _Assertion | _Sequence | _Choice | _Repeat


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > TEXT_MAX:
            raise PatternError("the pattern is too long")
        # Most patterns that authds return are plain words, which need no program.
        self._literal = None if _METAS & set(text) else text
        self._steps = [_Step(0, "", ())]  # the match
        self._start = 0
        if self._literal is None:
            self._start = self._compile(_Reader(text).read(), 0)
        self._is_anchored = self._steps[self._start].assertion == "begin"

    def __len__(self) -> int:
        """The number of instructions, which limits the cost of a match."""
        return len(self._steps)

    def search(self, text: str, patience: StepBudget | None = None) -> bool:
        """Whether the pattern matches anywhere in a name, like Go's MatchString.

        Raises TooManySteps if `patience` runs out. A step is a visit to an instruction.
        """
        if patience is not None:
            patience.take(1)
        if self._literal is not None:
            return self._literal in text
        threads: set[int] = set()
        for at in range(len(text) + 1):
            if at == 0 or not self._is_anchored:
                threads.add(self._start)
            elif not threads:  # an anchored pattern begins no new thread
                return False
            threads, steps = self._follow(threads, text, at)
            if 0 in threads:
                return True
            if patience is not None:
                patience.take(steps)
            if at < len(text):
                threads = self._take(threads, ord(text[at]))
        return False

    # Running

    def _take(self, threads: set[int], code: int) -> set[int]:
        return {step.targets[0] for at in threads if (step := self._steps[at]).mask >> code & 1}

    def _follow(self, threads: set[int], text: str, at: int) -> tuple[set[int], int]:
        """All threads reachable without consuming a character, and the number of steps taken."""
        reached: set[int] = set()
        waiting = list(threads)
        steps = 0
        while waiting:
            steps += 1
            thread = waiting.pop()
            if thread in reached:
                continue
            reached.add(thread)
            step = self._steps[thread]
            if not step.mask and (not step.assertion or _holds(step.assertion, text, at)):
                waiting += step.targets
        return reached, steps

    # Compiling, from the end to the start: each node is given the instruction that follows it

    def _add(self, mask: int, assertion: str, *targets: int) -> int:
        if len(self._steps) >= INSTRUCTIONS_MAX:
            raise PatternError("the pattern is too large")
        self._steps.append(_Step(mask, assertion, targets))
        return len(self._steps) - 1

    def _compile(self, node: _Node, then: int) -> int:
        match node:
            case _Characters(mask):
                # An empty set of characters is a fork without targets.
                return self._add(mask, "", then) if mask else self._add(0, "")
            case _Assertion(kind):
                return self._add(0, kind, then)
            case _Sequence(()) | _Repeat(_, _, 0):
                return self._add(0, "", then)
            case _Sequence(nodes):
                for one in reversed(nodes):
                    then = self._compile(one, then)
                return then
            case _Choice(nodes):
                return self._add(0, "", *[self._compile(one, then) for one in nodes])
            case _Repeat():
                return self._repeat(node, then)

    def _repeat(self, node: _Repeat, then: int) -> int:
        if node.most is None:
            fork = self._add(0, "")
            self._steps[fork] = _Step(0, "", (self._compile(node.node, fork), then))
            then = fork
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._add(0, "", self._compile(node.node, then), end)
        for _ in range(node.least):
            then = self._compile(node.node, then)
        return then


def _is_word(text: str, at: int) -> bool:
    return 0 <= at < len(text) and bool(_WORD >> ord(text[at]) & 1)


def _holds(assertion: str, text: str, at: int) -> bool:
    if assertion == "begin":
        return at == 0
    if assertion == "end":
        return at == len(text)
    return (_is_word(text, at - 1) != _is_word(text, at)) == (assertion == "word")


class _Reader:
    """Parses one pattern with Go's grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False
        self._copies = 1  # the largest product of repeats, so far, in the current group or item

    def read(self) -> _Node:
        """Parse the whole pattern; raises PatternError."""
        node = self._choice()
        if self._at < len(self._text):
            _refuse("unexpected )")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            _refuse("the pattern ends unexpectedly")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        found, there, _ = self._text[self._at :].partition(end)
        if not there:
            _refuse(f"missing {end}")
        self._at += len(found + end)
        return found

    # Structure

    def _choice(self) -> _Node:
        nodes = [self._sequence()]
        while self._skip("|"):
            nodes.append(self._sequence())
        return nodes[0] if len(nodes) == 1 else _Choice(tuple(nodes))

    def _sequence(self) -> _Node:
        nodes: list[_Node] = []
        while self._text[self._at : self._at + 1] not in ("", "|", ")"):
            copies, self._copies = self._copies, 1
            if self._skip("\\Q"):
                quoted = self._text[self._at :].partition("\\E")[0]
                self._at += len(quoted + "\\E")
                nodes += [self._characters(_bit(character)) for character in quoted]
                if quoted:
                    nodes.append(self._repeated(nodes.pop()))
            elif (node := self._one()) is not None:
                nodes.append(self._repeated(node))
            self._copies = max(copies, self._copies)
        return nodes[0] if len(nodes) == 1 else _Sequence(tuple(nodes))

    def _one(self) -> _Node | None:
        """Parse one item that can be repeated; None for flags, which are not a node."""
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._characters(self._class())
            case ".":
                return _Characters(ASCII & ~_bit("\n"))
            case "^":
                return _Assertion("begin")
            case "$":
                return _Assertion("end")
            case "\\":
                return self._escaped()
            case "*" | "+" | "?":
                _refuse(f"missing argument to {character}")
            case "{" if found := _COUNTS.match(self._text, self._at - 1):
                _refuse(f"missing argument to {found[0]}")
        return self._characters(_bit(character))

    def _escaped(self) -> _Node:
        for letter, kind in _ASSERTIONS.items():
            if self._skip(letter):
                return _Assertion(kind)
        return self._characters(self._escape())

    def _characters(self, mask: int) -> _Characters:
        if self._ignores_case:
            mask |= (mask & _UPPER) << 32 | (mask & _LOWER) >> 32
        return _Characters(mask & ASCII)

    def _group(self) -> _Node | None:
        ignores_case = self._ignores_case
        if self._skip("?") and not self._skip(":") and not self._is_named():
            end = self._flags()
            if end == ")":
                return None
        self._depth += 1
        if self._depth > DEPTH_MAX:
            _refuse("groups are nested too deeply")
        node = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            _refuse("missing )")
        self._ignores_case = ignores_case
        return node

    def _is_named(self) -> bool:
        if not self._skip("P<") and not (self._peek("<") and self._skip("<")):
            return False
        name = self._until(">")
        if not name or not all(_WORD & _bit(character) for character in name):
            _refuse("invalid group name")
        return True

    def _flags(self) -> str:
        """Parse flags up to ")" or ":". Names have no line ends, so only "i" has an effect."""
        turns_on = True
        while (flag := self._next()) not in ":)":
            if flag == "-" and turns_on:
                turns_on = False
            elif flag == "i":
                self._ignores_case = turns_on
            elif flag not in "msU":
                _refuse("invalid group")
        return flag

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._skip("?")  # lazy: does not affect whether there is a match
        if self._bounds() is not None:
            _refuse(f"invalid nested repetition before {self._at}")
        least, most = bounds
        self._copies *= (least or 1) if most is None else most  # 0 for {0}, but not for {0,}: as Go
        if self._copies > REPEAT_MAX:
            _refuse(f"nested repeats exceed {REPEAT_MAX:,}")
        return node if bounds == (1, 1) else _Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        sign = self._text[self._at : self._at + 1]
        if sign in _SIGNS:
            self._at += 1
            return _SIGNS[sign]
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            return None  # in Go a { without a repeat count is a literal
        self._at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            _refuse(f"invalid repeat count {found[0]}")
        return least, most

    # Characters

    def _escape(self) -> int:
        """Parse an escape after its backslash; returns its characters as a mask."""
        letter = self._next()
        if letter.lower() in _CLASSES:
            mask = _CLASSES[letter.lower()]
            return mask if letter.islower() else ASCII & ~mask
        if letter in _ESCAPES:
            return _bit(_ESCAPES[letter])
        if letter in "pP":
            is_negated = letter == "P"
            name = self._until("}") if self._skip("{") else self._next()
            if name.startswith("^"):
                name, is_negated = name[1:], not is_negated
            if name not in _UNICODE:
                _refuse(f"unknown character class {name}")
            return ASCII & ~_UNICODE[name] if is_negated else _UNICODE[name]
        if letter == "x":
            digits = self._until("}") if self._skip("{") else self._next() + self._next()
            return _code(digits, 16)
        if letter == "0" or (letter in "1234567" and _OCTALS.match(self._text, self._at)):
            found = _OCTALS.match(self._text, self._at)
            digits = letter + (found[0] if found else "")
            self._at += len(digits) - 1
            return _code(digits, 8)
        if letter.isascii() and not letter.isalnum():
            return _bit(letter)
        _refuse(f"invalid escape \\{letter}")

    def _class(self) -> int:
        """Parse a character class after its opening bracket; returns a mask."""
        negated = self._skip("^")
        mask, is_first = 0, True
        while is_first or not self._peek("]"):
            is_first = False
            if (named := _NAMED_CLASS.match(self._text, self._at)) is not None:
                self._at = named.end()
                if named[2] not in _NAMED:
                    _refuse(f"unknown character class {named[0]}")
                found = _NAMED[named[2]]
                mask |= ASCII & ~found if named[1] else found
                continue
            low, is_one = self._member()
            is_range = self._peek("-") and self._text[self._at + 1 : self._at + 2] not in ("", "]")
            if is_one and is_range:
                self._next()
                high, ends = self._member()
                if not ends or high < low:
                    _refuse("invalid range in a character class")
                mask |= (high << 1) - low
            else:
                mask |= low
        self._next()
        mask = self._characters(mask).mask
        return ASCII & ~mask if negated else mask

    def _member(self) -> tuple[int, bool]:
        """Parse one member of a class; returns its mask and whether it is a single character."""
        character = self._next()
        if character != "\\":
            return _bit(character), True
        letter = self._text[self._at : self._at + 1]
        return self._escape(), letter not in {*"dDwWsSpP"}


def _bit(character: str) -> int:
    """The mask of one character; all non-ASCII ones share bit 128, which is masked out later."""
    return 1 << min(ord(character), 128)


def _code(digits: str, base: int) -> int:
    try:
        code = int(digits, base) if digits.isalnum() else -1
    except ValueError:
        code = -1
    if not 0 <= code <= sys.maxunicode:
        _refuse(f"invalid character code {digits} in an escape")
    return _bit(chr(code))


def _refuse(why: str) -> NoReturn:
    raise PatternError(why)
