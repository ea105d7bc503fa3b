"""The bearer token that protects a daemon's HTTP, if one is configured (SECURITY.md, A-3, A-5).

1. Without `--http-token` there is no check, as in NSQ. With it, requests that change something or
   return more than figures need `Authorization: Bearer <token>`; without it the answer is 401,
   before the body is read.
2. A token in a file does not appear in the process list: `--http-token=@/path`.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparq.program.lifecycle import StartError

FROM_FILE = "@"
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # RFC 6750's
_USER = re.compile(r"//[^/?#]*@")
_FLAG = re.compile(r"--?(http|upstream|lookupd)-token")


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


def without_secrets(words: list[str]) -> list[str]:
    """Return a command line without tokens and without secrets in URLs."""
    shown = [public(word) for word in words]
    # Both forms of a flag have to be covered: --http-token=T and --http-token T.
    for at, word in enumerate(shown):
        flag, equals, value = word.partition("=")
        if not _FLAG.fullmatch(flag):
            continue
        if equals:
            shown[at] = f"{flag}={hidden(value)}"
        elif at + 1 < len(shown):
            shown[at + 1] = hidden(shown[at + 1])
    return shown


def public(url: str) -> str:
    """Return a URL without user, password and query; other texts are unchanged."""
    return _USER.sub("//", url).partition("?")[0] if "://" in url else url


def hidden(value: str) -> str:
    """Return `***` for a token; "" and `@FILE` are unchanged."""
    return value if not value or value.startswith(FROM_FILE) else "***"
