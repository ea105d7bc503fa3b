"""Which nsqds a producer leaves out because they drain.

1. An nsqd whose refusal says so gets nothing for `RETRY_SECONDS`; then one publish tries it again.
   Its OK ends that; another refusal has it left out for as long again.
2. One that an nsqlookupd lists as draining is left out for as long as it is listed so. Once it is
   not any more, what it said itself counts no longer, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sparq.client.log_fields import FieldLogger

log = FieldLogger(__name__)

RETRY_SECONDS: Final = 5.0


class Drained:
    """The nsqds that are left out; false where there is none."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._listed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._until or self._listed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed.union(self._until))

    def has(self, address: str, now: float) -> bool:
        """Whether an nsqd is left out at this time (of the loop's clock)."""
        return address in self._listed or self._until.get(address, now) > now

    def refused(self, address: str, now: float) -> None:
        """It has refused a publish because it drains."""
        if address not in self._until and address not in self._listed:
            log.info("nsqd %s drains: it is left out", address, extra={"nsqd": address})
        self._until[address] = now + RETRY_SECONDS

    def sent(self, address: str, now: float) -> None:
        """It gets a publish: where that is a try, the only one for a while."""
        if address in self._until:
            self._until[address] = now + RETRY_SECONDS

    def took(self, address: str) -> None:
        """It has said OK."""
        if self._until.pop(address, None) is not None:
            log.info("nsqd %s takes publishes again", address, extra={"nsqd": address})

    def list(self, addresses: frozenset[str]) -> None:
        """These are what nsqlookupds list as draining now."""
        for address in self._listed - addresses:
            self._until.pop(address, None)
            log.info("nsqd %s: listed as draining no more", address, extra={"nsqd": address})
        self._listed = addresses
