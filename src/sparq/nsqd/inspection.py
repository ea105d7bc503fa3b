"""Looking at messages, and acting on single ones (docs/http.md, "Looking into a queue").

The table of routes; `broker/inspection.py` and its neighbours do the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparq.daemon.http import Call, HttpError, Route

if TYPE_CHECKING:
    from sparq.nsqd.server import Nsqd


class Inspection:
    """The handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", "/channel/messages", self._missing, private=True),
            Route("GET", "/topic/messages", self._missing, private=True),
            Route("GET", "/message", self._missing, private=True),
            Route("GET", "/topic/search", self._missing, private=True),
            Route("GET", "/topic/times", self._missing),
            Route("POST", "/message/requeue", self._missing),
            Route("POST", "/message/finish", self._missing),
            Route("POST", "/message/cancel", self._missing),
            Route("POST", "/message/copy", self._missing),
        ]

    def _missing(self, _call: Call) -> Any:
        raise HttpError(501, "NOT_IMPLEMENTED")
