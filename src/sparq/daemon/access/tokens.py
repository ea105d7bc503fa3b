"""Bearer tokens: a file of hashes with their names, roles and expiry dates.

    # name   roles                       sha256 of the token           last day (UTC)
    deploy   operate                     6e8c...64 hex digits...       2027-03-31
    web      publish:clicks*,read        77ab...64 hex digits...
    anybody  read                        -

1. The file holds no tokens, only hashes. A token made by `make` has 256 random bits, so its hash
   is safe to store; a token shorter than `LENGTH_MIN` is refused, since it could be guessed.
2. Every hash is compared, each in constant time: the total time reveals nothing about any of them.
3. A file with a mistake is refused as a whole; the error names the line.
4. Requests without a token have the roles of `anybody`. It has `-` for a hash, and may have at
   most `read`.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparq.daemon.access import rights
from sparq.daemon.access.rights import Grant
from sparq.daemon.access.roles import ADMINS_WORDS, WORDS, Role
from sparq.daemon.token import TOKEN

LENGTH_MIN = 20
TOKENS_MAX = 1000
FILE_BYTES_MAX = 1 << 20
ANYBODY = "anybody"
NO_HASH = "-"
MASTER = "http-token"
"""The name of `--http-token` in audit files."""

_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
# `#ephemeral` may end a pattern.
_COMMENT = re.compile(r"(?:^|\s)#.*|#(?!ephemeral(?:[,\s]|$)).*")
_SCHEME = "bearer "
_DAY_SECONDS = 86_400.0


class TokenFileError(ValueError):
    """The file cannot be used; the text says why."""


class Form(NamedTuple):
    """The allowed contents of a token file's lines.

    Attributes:
        words: the allowed roles by name.
        is_whole: whether every role is for all topics, and `anybody` has no special meaning.
        prefix: the beginning of each token made for the file, so that secret scanners can find
            one in a repository.
    """

    words: Mapping[str, Role] = WORDS
    is_whole: bool = False
    prefix: str = "nsq_"


FORM = Form()
"""The form of nsqd's and nsqlookupd's token files."""

ADMINS_FORM = Form(ADMINS_WORDS, is_whole=True, prefix="nsqadmin_")
"""The form of nsqadmin's: only its own roles, each for all topics."""


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file. `expires`: seconds since the epoch; from then on it is refused."""

    name: str
    grants: tuple[Grant, ...]
    digest: bytes = field(repr=False)
    expires: float = float("inf")

    @property
    def roles(self) -> Role:
        """The roles that it has for all topics."""
        return rights.everywhere(self.grants)


class Tokens:
    """The tokens of one file.

    Attributes:
        anybody: the grants of requests without a token.
    """

    def __init__(self, tokens: Sequence[Token] = (), anybody: tuple[Grant, ...] = ()) -> None:
        self.anybody = anybody
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def in_force(self, now: float) -> int:
        """Return how many tokens have not expired."""
        return sum(now < token.expires for token in self._tokens)

    def find(self, shown: str, now: float) -> Token | None:
        """Return the line of a token; None: there is none, or it has expired."""
        return _unless_expired(self.known(shown), now)

    def known(self, shown: str) -> Token | None:
        """Return the line of a token, even if it has expired."""
        if len(shown) < LENGTH_MIN or not TOKEN.fullmatch(shown):
            return None
        return self._with(digest(shown))

    def by_digest(self, sought: bytes, now: float) -> Token | None:
        """Return the line with this hash, unless it has expired."""
        return _unless_expired(self._with(sought), now)

    def _with(self, sought: bytes) -> Token | None:
        # No `break`: the time would show how far down the file the token is (rule 2).
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, sought):
                found = token
        return found


def _unless_expired(token: Token | None, now: float) -> Token | None:
    return token if token is not None and now < token.expires else None


def digest(token: str) -> bytes:
    """Return the SHA-256 hash of a token, as stored in the file."""
    return hashlib.sha256(token.encode("ascii", "replace")).digest()


def is_same(shown: str, token: str) -> bool:
    """Whether a shown token is this one; the time of the comparison reveals nothing about it."""
    # Digests have the same length, whatever was sent.
    return hmac.compare_digest(digest(shown), digest(token))


def shown(authorizations: Sequence[str]) -> str | None:
    """Return the token in Authorization headers; None: there is none; empty: not a valid one."""
    bearers = [text for text in authorizations if text.lower().startswith(_SCHEME.rstrip())]
    if not bearers:
        return None
    # With several headers it is unclear which one counts, so none does.
    is_one = len(authorizations) == 1 and bearers[0].lower().startswith(_SCHEME)
    return bearers[0][len(_SCHEME) :].strip() if is_one else ""


def read(path: str, form: Form = FORM) -> Tokens:
    """Read a token file. Raises TokenFileError: see `read_text` and `parse`."""
    return parse(path, read_text(path), form)


def read_text(path: str) -> str:
    """Return the text of a token file.

    Raises:
        TokenFileError: it cannot be read, all users may write it, or it is not text.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read - {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"{path} is not UTF-8 text") from None
    # That all can read it is no danger, since it holds only hashes. Whoever can write it can grant
    # any role.
    if mode & stat.S_IWOTH:
        raise TokenFileError(f"{path} can be changed by every user: run chmod o-w on it")
    return text


def parse(path: str, text: str, form: Form = FORM) -> Tokens:
    """Parse the text of a token file.

    Raises:
        TokenFileError: it is too large, or a line is wrong.
    """
    if len(text.encode()) > FILE_BYTES_MAX:
        raise TokenFileError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    found: dict[bytes, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = words_of(line)
        if not words:
            continue
        try:
            token = parse_line(words, form)
        except ValueError as error:
            raise TokenFileError(f"{path}, line {number}: {error}") from None
        if token.digest in found:
            raise TokenFileError(f"{path}, line {number}: this token is already in the file")
        found[token.digest] = token
    anybody = found.pop(b"", None)  # its digest, so that a second such line is refused above
    if len(found) > TOKENS_MAX:
        raise TokenFileError(f"{path} has more than {TOKENS_MAX} tokens")
    return Tokens(list(found.values()), () if anybody is None else anybody.grants)


def words_of(line: str) -> list[str]:
    """Return the words of a line without its comment."""
    return _COMMENT.sub("", line, count=1).split()


def parse_line(words: Sequence[str], form: Form = FORM) -> Token:
    """Parse a line: name, roles, hash and optionally a last day. The digest of `-` is empty.

    Raises:
        ValueError: what is wrong with it.
    """
    if len(words) not in (3, 4):
        raise ValueError("write NAME ROLES SHA256, optionally with a last day such as 2027-03-31")
    name, granted, hashed = words[:3]
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 64 letters, digits and ._@+-")
    if name == MASTER:
        raise ValueError(f"the name {MASTER} stands for the flag --{MASTER} in audit files")
    if form.is_whole and ":" in granted:
        raise ValueError("roles apply to all topics here: write the role without a pattern")
    roles = rights.parse(granted, form.words)
    if not form.is_whole and name == ANYBODY:
        if hashed != NO_HASH or len(words) == 4 or rights.anywhere(roles) not in Role.READ:
            raise ValueError(
                f"{ANYBODY} has no token and at most the role read: write {ANYBODY} read -"
            )
        return Token(name, roles, b"")
    hashed = hashed.removeprefix("sha256:").lower()
    if not _HASH.fullmatch(hashed):
        raise ValueError("a sha256 has 64 hex digits")
    expires = end_of(words[3]) if len(words) == 4 else float("inf")
    return Token(name, roles, bytes.fromhex(hashed), expires)


def end_of(text: str) -> float:
    """Parse a date (its end, UTC) or a time with UTC offset; return seconds since the epoch.

    Raises:
        ValueError: the text is neither.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a date: write it as 2027-03-31") from None
    is_day = len(text) <= len("2027-03-31")
    if moment.tzinfo is None:
        if not is_day:
            raise ValueError(f"{text!r} has no UTC offset: add Z for UTC")
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() + (_DAY_SECONDS if is_day else 0.0)


def make(name: str, granted: str, last_day: str = "", *, form: Form = FORM) -> tuple[str, str]:
    """Make a new token; return it and its line for the file.

    Raises:
        ValueError: a name, role or day is wrong.
    """
    token = form.prefix + secrets.token_urlsafe(32)
    words = [name, granted, digest(token).hex(), *([last_day] if last_day else [])]
    parse_line(words, form)
    return token, " ".join(words)
