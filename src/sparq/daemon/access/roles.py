"""Roles: what somebody may do, and the words for it in options and token files.

1. A role includes the lower ones: administer, operate, read; consume includes bodies, and bodies
   read. Every role but none includes `FIND`: to be told which nsqds have a topic.
2. Seeing the bodies of messages is apart: neither operate nor administer includes it, or to
   publish or consume.
3. What each role means is for each daemon to say, in its own table (`rights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Literal

Via = Literal["local", "header", "token", "nobody"]
"""How the name of whoever sent a request is known."""


class Role(IntFlag):
    """What somebody may do. `a in b`: who has `b` has `a`."""

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
}
"""Those that nsqadmin knows, weakest first."""

WORDS = {
    **ADMINS_WORDS,
    "publish": Role.PUBLISH,
    "consume": Role.CONSUME,
    "register": Role.REGISTER,
}
NO_ROLE = "none"
WORD_MAX = 16


class RoleError(ValueError):
    """A text that names no roles; the message says what to write."""


def role_of(word: str, words: Mapping[str, Role] = WORDS) -> Role:
    """The role that a word means.

    Raises:
        RoleError: it is none of `words`.
    """
    word = word.strip()
    role = words.get(word)
    if role is None:
        # A long word may be a token that slipped into a wrong column.
        named = repr(word or "empty") if len(word) <= WORD_MAX else "a long word"
        raise RoleError(f"{named} is no role: use {', '.join(words)}")
    return role
