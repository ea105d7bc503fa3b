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
from pathlib import Path
from typing import NamedTuple

from sparq.daemon.access import rules
from sparq.daemon.access.rules import ADMINS_WORDS, WORDS, Grant, Role
from sparq.daemon.options import FROM_FILE
from sparq.program.lifecycle import StartError

TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # RFC 6750's
LENGTH_MIN = 20
TOKENS_MAX = 1000
FILE_BYTES_MAX = 1 << 20
ANYBODY = "anybody"
NO_HASH = "-"
ID_LENGTH = 12
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
    """One line of the file.

    Attributes:
        digest: the token's hash; empty for `anybody`.
        expires: seconds since the epoch; from then on the token is refused.
        number: the line's number, from 1.
        words: the line, without its comment.
    """

    name: str
    grants: tuple[Grant, ...]
    digest: bytes = field(repr=False)
    expires: float = float("inf")
    number: int = 0
    words: tuple[str, ...] = field(default=(), repr=False)

    @property
    def id(self) -> str:
        """The beginning of the token's hash; `-` for `anybody`."""
        return self.digest.hex()[:ID_LENGTH] or NO_HASH


class Tokens:
    """The tokens of one file.

    Attributes:
        lines: the tokens, and `anybody`, in the order of the file.
        anybody: the grants of requests without a token.
    """

    def __init__(self, lines: Sequence[Token] = ()) -> None:
        self.lines = lines
        self.anybody = next((line.grants for line in lines if not line.digest), ())
        self._tokens = [line for line in lines if line.digest]

    def __len__(self) -> int:
        return len(self._tokens)

    def in_force(self, now: float) -> int:
        """Return how many tokens have not expired."""
        return sum(now < token.expires for token in self._tokens)

    def find(self, shown: str, now: float = 0.0) -> Token | None:
        """Return the line of a token; `now`: unless it has expired."""
        is_possible = len(shown) >= LENGTH_MIN and TOKEN.fullmatch(shown)
        return self.with_digest(digest(shown), now) if is_possible else None

    def with_digest(self, sought: bytes, now: float = 0.0) -> Token | None:
        """Return the line with this hash; `now`: unless it has expired."""
        # No `break`: the time would show how far down the file the token is (rule 2).
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, sought) and now < token.expires:
                found = token
        return found


def resolve(text: str, flag: str = "--http-token") -> str:
    """Return the token of the option `flag`, read from a file for `@FILE`; empty: none.

    Raises:
        StartError: the file cannot be read, or a header cannot carry the token.
    """
    if text.startswith(FROM_FILE):
        path = text.removeprefix(FROM_FILE)
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise StartError(f"{flag}: {path} cannot be read - {reason}") from None
    elif not text:
        return ""
    if not TOKEN.fullmatch(text):
        raise StartError(f"{flag}: use at most 512 letters, digits and ._~+/-")
    return text


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
            token = parse_line(words, form, number)
        except ValueError as error:
            raise TokenFileError(f"{path}, line {number}: {error}") from None
        # Also for `anybody`, whose digest is empty.
        if token.digest in found:
            raise TokenFileError(f"{path}, line {number}: this token is already in the file")
        found[token.digest] = token
    tokens = Tokens(list(found.values()))
    if len(tokens) > TOKENS_MAX:
        raise TokenFileError(f"{path} has more than {TOKENS_MAX} tokens")
    return tokens


def words_of(line: str) -> list[str]:
    """Return the words of a line without its comment."""
    return _COMMENT.sub("", line, count=1).split()


def parse_line(words: Sequence[str], form: Form = FORM, number: int = 0) -> Token:
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
    roles = rules.parse(granted, form.words)
    if not form.is_whole and name == ANYBODY:
        if hashed != NO_HASH or len(words) == 4 or rules.roles_for(roles, None) not in Role.READ:
            raise ValueError(
                f"{ANYBODY} has no token and at most the role read: write {ANYBODY} read -"
            )
        return Token(name, roles, b"", number=number, words=tuple(words))
    hashed = hashed.removeprefix("sha256:").lower()
    if not _HASH.fullmatch(hashed):
        raise ValueError("a sha256 has 64 hex digits")
    expires = end_of(words[3]) if len(words) == 4 else float("inf")
    return Token(name, roles, bytes.fromhex(hashed), expires, number, tuple(words))


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
