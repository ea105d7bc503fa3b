"""What NSQ's API says of failures: a warning where some daemons failed, 502 where all did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparq.cluster.fleet import Gathered
from sparq.daemon.http import HttpError


def upstream_error(sentence: str) -> HttpError:
    """Nobody answered."""
    return HttpError(502, f"UPSTREAM_ERROR: {sentence}")


def warning(texts: Iterable[str]) -> str:
    """The `message` of an answer; "": nothing went wrong."""
    told = [text for text in texts if text]
    return f"WARNING: {'; '.join(told)}" if told else ""


def needed(found: Gathered[Any]) -> str:
    """What is to be warned of.

    Raises:
        HttpError: 502, nobody answered.
    """
    if found.failed:
        raise upstream_error(found.failure)
    return found.text
