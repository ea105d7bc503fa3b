"""Roles of clients, and their names in options and token files.

1. A role includes the lower ones: administer includes operate, and operate read; consume includes
   bodies, and bodies read. Every role except none includes `FIND`: look up which nsqds have a
   topic.
2. Reading the bodies of messages is separate: neither operate nor administer includes it, nor do
   they include publish or consume.
3. Each daemon defines in its own table (`rights`) what each role may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Literal

Via = Literal["local", "header", "token", "nobody"]
"""How the name of a request's sender is known."""


class Role(IntFlag):
    """What a client may do. `a in b`: role `b` includes `a`."""

    NONE = 0
    FIND = 1
    READ = 2 | FIND
    BODIES = 4 | READ
    OPERATE = 8 | READ
    ADMINISTER = 16 | OPERATE
    PUBLISH = 32 | FIND
    CONSUME = 64 | BODIES
    REGISTER = 128 | FIND


ADMINS_WORDS = {
    "read": Role.READ,
    "bodies": Role.BODIES,
    "operate": Role.OPERATE,
    "administer": Role.ADMINISTER,
    "publish": Role.PUBLISH,
}
"""nsqadmin's roles: those that include one another weakest first."""

WORDS = {
    **ADMINS_WORDS,
    "consume": Role.CONSUME,
    "register": Role.REGISTER,
}
NO_ROLE = "none"
WORD_MAX = 16


class RoleError(ValueError):
    """A text that does not name a valid role; the message says what to write."""


def role_of(word: str, words: Mapping[str, Role] = WORDS) -> Role:
    """Return a role by its name.

    Raises:
        RoleError: the name is not in `words`.
    """
    word = word.strip()
    role = words.get(word)
    if role is None:
        # A long word may be a token in the wrong column; do not repeat it.
        named = repr(word or "empty") if len(word) <= WORD_MAX else "a long word"
        raise RoleError(f"{named} is not a role: use {', '.join(words)}")
    return role
