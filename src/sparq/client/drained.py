"""The draining nsqds, which a producer skips.

1. An nsqd that refuses a publish because it drains is skipped for `RETRY_SECONDS`; then one publish
   tries it again. An OK ends this; another refusal starts the wait again.
2. An nsqd that an nsqlookupd lists as draining is skipped as long as it is listed so. When the
   listing ends, its own earlier refusals no longer count, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sparq.client.log_fields import FieldLogger

log = FieldLogger(__name__)

RETRY_SECONDS: Final = 5.0


class Drained:
    """The set of draining nsqds; false if it is empty."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._listed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._until or self._listed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed.union(self._until))

    def has(self, address: str, now: float) -> bool:
        """Whether an nsqd is skipped at this loop time."""
        return address in self._listed or self._until.get(address, now) > now

    def refused(self, address: str, now: float) -> None:
        """Note that an nsqd refused a publish because it drains."""
        if address not in self._until and address not in self._listed:
            text = "nsqd %s is draining: no publishes are sent to it"
            log.info(text, address, extra={"nsqd": address})
        self._until[address] = now + RETRY_SECONDS

    def sent(self, address: str, now: float) -> None:
        """Note that an nsqd gets a publish: if it is a retry, the only one for `RETRY_SECONDS`."""
        if address in self._until:
            self._until[address] = now + RETRY_SECONDS

    def took(self, address: str) -> None:
        """Note an OK from an nsqd: it accepts publishes again."""
        if self._until.pop(address, None) is not None:
            log.info("nsqd %s accepts publishes again", address, extra={"nsqd": address})

    def list(self, addresses: frozenset[str]) -> None:
        """Set the nsqds that nsqlookupds list as draining now."""
        for address in self._listed - addresses:
            self._until.pop(address, None)
            log.info("nsqd %s: no longer listed as draining", address, extra={"nsqd": address})
        self._listed = addresses
