"""NSQ's error codes as sentences for people: what is the matter, and what to do."""

from __future__ import annotations

from typing import Final

_SENTENCES: Final = {
    "NOT_FOUND": ("There is no such page.", "Look at the address, or begin at the overview."),
    "NODE_NOT_FOUND": (
        "No nsqd of this cluster has this address.",
        "It may have been gone for so long that it was forgotten.",
    ),
    "METHOD_NOT_ALLOWED": ("This page does not take that.", ""),
    "FORBIDDEN": (
        "You may not do this.",
        "Ask whoever runs nsqadmin for the role that it needs (--role, --token-file).",
    ),
    "UNAUTHORIZED": ("Sign in first.", "It needs a token that is valid now."),
    "WRONG_TOKEN": (
        "This token is not valid, or not any more.",
        "Copy it once more, or ask whoever runs nsqadmin for a new one.",
    ),
    "NO_TOKENS": ("Nobody can sign in here.", "nsqadmin was started without --token-file."),
    "INVALID_TOPIC": (
        "This is no name of a topic.",
        "Use 1 to 64 of the characters .a-zA-Z0-9_-, optionally followed by #ephemeral.",
    ),
    "INVALID_CHANNEL": (
        "This is no name of a channel.",
        "Use 1 to 64 of the characters .a-zA-Z0-9_-, optionally followed by #ephemeral.",
    ),
    "TOPIC_NOT_FOUND": ("No nsqd has this topic.", ""),
    "CHANNEL_NOT_FOUND": ("No nsqd has this channel.", ""),
    "INVALID_ARG_REGEX": ("This is no pattern:", ""),
    "INVALID_ARG_JSON": ("This is no question about JSON:", ""),
    "INVALID_ARG_ATTEMPTS": ("This is no number of attempts:", ""),
    "INVALID_ARG_FROM": ("There is no such place to begin:", ""),
    "INVALID_ARG_TO": ("There is no such place:", ""),
    "INVALID_ACTION": ("There is no such action.", ""),
    "NAME_NOT_TYPED": ("Nothing was done: the name was not typed as it is.", "Type it once more."),
    "AUDIT_UNAVAILABLE": (
        "Nothing was done: the audit log cannot be written.",
        "See nsqadmin's log, and the disk of --audit-log.",
    ),
    "INTERNAL_ERROR": ("nsqadmin met an error of its own.", "Its log says more."),
}
_TITLES: Final = {400: "Not like this", 401: "Sign in", 403: "Not allowed", 404: "Not found"}


def in_words(status: int, code: str) -> tuple[str, str, str]:
    """Title, sentence and hint for a refused request; a code that is a sentence stays one."""
    name, _, more = code.partition(":")
    sentence, hint = _SENTENCES.get(name, (code, ""))
    return _TITLES.get(status, "Error"), f"{sentence} {more.strip()}".strip(), hint
