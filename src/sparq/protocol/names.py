"""Names of topics, channels and hosts: validation, directory names, and quoting in errors.

1. A name has 1 to 64 characters of ``[.a-zA-Z0-9_-]``; the suffix ``#ephemeral`` counts too.
2. "." and ".." are legal names, and file systems may ignore case. So a topic's directory is never
   just its name: the encoding is injective even if case is ignored, and never gives "." or "..".
3. A pattern of names (policies, grants) has the same characters, and `*` for any text, `?` for one
   character.
4. Quoting follows Go's ``%q``, since clients and tests compare error texts.
"""

import re
from fnmatch import translate
from functools import lru_cache
from typing import Final

NAME_SIZE_MAX: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"
DEAD: Final = ".dead"
DIRECTORY_PREFIX: Final = "t-"
SHOWN_MAX: Final = 200
"""Maximum characters of a peer's text in a line for people."""

_NAME: Final = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
_PATTERN: Final = re.compile(r"[.a-zA-Z0-9_*?-]+(?:#ephemeral)?")
_WILD: Final = re.compile(r"[*?]")
_COMPILED_MAX: Final = 10_000
_TO_ESCAPE: Final = re.compile(r"[A-Z_]")
_ESCAPED: Final = re.compile(r"_([a-z_])")
_DIRECTORY: Final = re.compile(r"t-(?:[.a-z0-9#-]|_[a-z_])+")

_SHORT_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def is_valid_name(name: str | bytes) -> bool:
    """Whether a topic or a channel may have this name."""
    if isinstance(name, str):
        # JSON may contain lone surrogates: such a name is invalid, not an exception.
        name = name.encode("utf-8", "surrogatepass")
    return len(name) <= NAME_SIZE_MAX and _NAME.fullmatch(name) is not None


def is_valid_pattern(text: str) -> bool:
    """Whether this may be a pattern of names."""
    return len(text) <= NAME_SIZE_MAX and _PATTERN.fullmatch(text) is not None


def is_wild(pattern: str) -> bool:
    """Whether a pattern may fit more than one name."""
    return _WILD.search(pattern) is not None


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name."""
    return _compiled(pattern).fullmatch(name) is not None if is_wild(pattern) else pattern == name


@lru_cache(_COMPILED_MAX)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def is_ephemeral(name: str) -> bool:
    """Whether a topic or channel of this name is in memory only and deleted when unused."""
    return name.endswith(EPHEMERAL_SUFFIX)


def is_dead_letter_topic(name: str) -> bool:
    """Whether a topic is a dead-letter topic, by its name; see ``dead_letters``."""
    return name.removesuffix(EPHEMERAL_SUFFIX).endswith(DEAD)


def directory_name(name: str) -> str:
    """Encode a topic's name: lower case stays, ``X`` becomes ``_x`` and ``_`` becomes ``__``.

    Raises:
        ValueError: the name is not legal.
    """
    if not is_valid_name(name):
        raise ValueError(f"not a legal name: {quote(name)}")
    return DIRECTORY_PREFIX + _TO_ESCAPE.sub(lambda found: "_" + found[0].lower(), name)


def topic_of_directory(directory: str) -> str | None:
    """Decode a directory name; None if it is not a topic's directory."""
    if _DIRECTORY.fullmatch(directory) is None:
        return None
    name = _ESCAPED.sub(lambda found: found[1].upper(), directory[len(DIRECTORY_PREFIX) :])
    return name if is_valid_name(name) else None


def quote(text: bytes | str) -> str:
    """Quote as Go's ``%q`` does, in double quotes; bytes that are not UTF-8 become ``\\x..``."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return '"' + "".join(map(_quoted_character, text)) + '"'


def _quoted_character(character: str) -> str:
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte kept by surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str, length_max: int = SHOWN_MAX) -> str:
    """Make a peer's text safe to print: cut, and with blanks for non-printable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:length_max])
