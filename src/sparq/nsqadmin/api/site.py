"""All routes of NSQ's own API."""

from __future__ import annotations

from sparq.daemon.http import Route
from sparq.nsqadmin.api.config import Config
from sparq.nsqadmin.api.reading import Reading
from sparq.nsqadmin.api.writing import Writing
from sparq.nsqadmin.desk import Desk


def routes(desk: Desk) -> list[Route]:
    """The table of endpoints."""
    return [*Reading(desk).routes(), *Writing(desk).routes(), *Config(desk).routes()]
