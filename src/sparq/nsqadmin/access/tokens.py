"""Bearer tokens: a file of hashes says whose they are, what they may do and until when.

    # name   roles              sha256 of the token                    last day (UTC)
    deploy   operate            6e8c...64 hex digits...                2027-03-31
    grafana  read               1b0f...64 hex digits...

1. The file holds no token. One made by `make` has 256 random bits, so its hash is safe to keep;
   what is shorter than `LENGTH_MIN` is refused, since it could be guessed.
2. Every hash is compared, each in constant time: how long it takes says nothing about any.
3. A file with a mistake is refused as a whole; the error names the line.
4. A browser that signed in with a token has a session. Its cookie holds a random id, never the
   token, since a browser sends cookies to every port of a host. What a session may do is looked up
   at the token each time, so a token that is gone ends its sessions.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from sparq.nsqadmin.access import roles
from sparq.nsqadmin.access.roles import Role

LENGTH_MIN = 20
TOKENS_MAX = 1000
FILE_BYTES_MAX = 1 << 20
LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1000
PREFIX = "nsqadmin_"
"""Begins each token that is made here, so that secret scanners can find one in a repository."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # RFC 6750's
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_SCHEME = "bearer "
_DAY_SECONDS = 86_400.0


class TokenFileError(ValueError):
    """The file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file. `expires`: seconds since the epoch from which on it is refused."""

    name: str
    roles: Role
    digest: bytes
    expires: float = float("inf")


class Tokens:
    """The tokens of one file."""

    def __init__(self, tokens: Sequence[Token] = ()) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, shown: str, now: float) -> Token | None:
        """The line of a token that was shown; None: there is none, or it has expired."""
        if len(shown) < LENGTH_MIN or not _TOKEN.fullmatch(shown):
            return None
        return self.by_digest(digest(shown), now)

    def by_digest(self, sought: bytes, now: float) -> Token | None:
        """The line with this hash, unless it has expired."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, sought):
                found = token
        return found if found is not None and now < found.expires else None


def digest(token: str) -> bytes:
    """What the file holds of a token."""
    return hashlib.sha256(token.encode("ascii", "replace")).digest()


def shown(authorizations: Sequence[str]) -> str | None:
    """The token of the Authorization headers; None: they name none, empty: none that can be."""
    bearers = [text for text in authorizations if text.lower().startswith(_SCHEME.rstrip())]
    if not bearers:
        return None
    return bearers[0][len(_SCHEME) :].strip() if len(authorizations) == 1 else ""


def read(path: str) -> Tokens:
    """Read a file of tokens.

    Raises:
        TokenFileError: it cannot be read, others may change it, or a line is wrong.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read - {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"{path} is no text") from None
    if mode & stat.S_IWOTH:
        raise TokenFileError(f"{path} can be changed by every user of this machine")
    if len(data) > FILE_BYTES_MAX:
        raise TokenFileError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return Tokens(_parse(path, text))


def _parse(path: str, text: str) -> list[Token]:
    found: dict[bytes, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            token = parse_line(words)
        except ValueError as error:
            raise TokenFileError(f"{path}, line {number}: {error}") from None
        if token.digest in found:
            raise TokenFileError(f"{path}, line {number}: this token is there already")
        found[token.digest] = token
    if len(found) > TOKENS_MAX:
        raise TokenFileError(f"{path} has more than {TOKENS_MAX} tokens")
    return list(found.values())


def parse_line(words: Sequence[str]) -> Token:
    """One line: name, roles, hash and perhaps a last day.

    Raises:
        ValueError: what is wrong with it.
    """
    if len(words) not in (3, 4):
        raise ValueError("write NAME ROLES SHA256 and perhaps the last day, as 2027-03-31")
    name, granted, hashed = words[:3]
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 64 letters, digits and ._@+-")
    hashed = hashed.removeprefix("sha256:").lower()
    if not _HASH.fullmatch(hashed):
        raise ValueError("a sha256 has 64 hex digits")
    expires = end_of(words[3]) if len(words) == 4 else float("inf")
    return Token(name, roles.parse(granted), bytes.fromhex(hashed), expires)


def end_of(text: str) -> float:
    """The end of a day, or a moment with its offset, in seconds since the epoch.

    Raises:
        ValueError: it is neither.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no day: write 2027-03-31") from None
    is_day = len(text) <= len("2027-03-31")
    if moment.tzinfo is None:
        if not is_day:
            raise ValueError(f"{text!r} has no offset: end it with Z")
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() + (_DAY_SECONDS if is_day else 0.0)


def make(name: str, granted: str, last_day: str = "") -> tuple[str, str]:
    """A new token, and its line for the file.

    Raises:
        ValueError: the line would be wrong.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    words = [name, granted, digest(token).hex(), *([last_day] if last_day else [])]
    parse_line(words)
    return token, " ".join(words)


class Sessions:
    """The sessions of this process, in memory; beyond `SESSIONS_MAX` the oldest ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[bytes, float]] = {}

    def start(self, digest: bytes, now: float) -> str:
        """A new session for the token with this hash; its id."""
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = digest, now + LIFE_SECONDS
        return name

    def digest(self, name: str, now: float) -> bytes | None:
        """The hash of the token that a session began with; None: there is no such session."""
        digest, ends = self._sessions.get(name, (b"", 0.0))
        if now < ends:
            return digest
        self.end(name)
        return None

    def end(self, name: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(name, None)
