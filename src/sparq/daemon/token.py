"""The bearer token that HTTP asks for where a daemon is given one (security table, A-3, A-5).

1. Without `--http-token` nobody is asked, as with NSQ. With it, what changes something and what
   tells more than figures needs `Authorization: Bearer <token>`; else 401, before anything is read.
2. How long a comparison takes tells nothing of the token.
3. A token in a file is in no process list: `--http-token=@/path`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from aiohttp import web

FROM_FILE = "@"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # RFC 6750's
_SCHEME = "bearer "
_USER = re.compile(r"//[^/?#]*@")
_FLAG = re.compile(r"--?(http|upstream|lookupd)-token")


def resolve(text: str, flag: str = "--http-token") -> str:
    """The token that the option means, which `flag` gave; empty for none.

    Raises:
        StartError: its file cannot be read, or it is none that a header can carry.
    """
    if text.startswith(FROM_FILE):
        path = text.removeprefix(FROM_FILE)
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise StartError(f"{flag}: {path} cannot be read - {reason}") from None
    elif not text:
        return ""
    if not _TOKEN.fullmatch(text):
        raise StartError(f"{flag} must be letters, digits and ._~+/-, 512 at most")
    return text


def is_shown(request: web.BaseRequest, token: str) -> bool:
    """Whether a request shows the token."""
    given = request.headers.getall("Authorization", [])
    if len(given) != 1 or not given[0].lower().startswith(_SCHEME):
        return False
    shown = given[0][len(_SCHEME) :].strip()
    return hmac.compare_digest(_digest(shown), _digest(token))


def _digest(text: str) -> bytes:
    # Of one length, whatever was sent.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def without_secrets(words: list[str]) -> list[str]:
    """A command line as it may be told: no token, no secrets in a URL."""
    told = [public(word) for word in words]
    for at, word in enumerate(told):
        flag, equals, value = word.partition("=")
        if not _FLAG.fullmatch(flag):
            continue
        if equals:
            told[at] = f"{flag}={hidden(value)}"
        elif at + 1 < len(told):
            told[at + 1] = hidden(told[at + 1])
    return told


def public(url: str) -> str:
    """A URL as it may be told: without user, password and query; other texts as they are."""
    return _USER.sub("//", url).partition("?")[0] if "://" in url else url


def hidden(value: str) -> str:
    """A token as it may be told: whether there is one, and where it is."""
    return value if not value or value.startswith(FROM_FILE) else "***"
