"""Prometheus' figures about access checks; none if there are no checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparq.daemon.prometheus_text import Family, labels

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access


def families(access: Access | None, program: str) -> Iterator[Family]:
    """Yield the number of refusals by reason, and of tokens that have not expired."""
    if access is None or not access.asks:
        return
    refused = Family(
        f"{program}_refused_requests_total", "counter", "Requests and commands refused, by reason"
    )
    for reason, count in access.refused.items():
        refused.add(count, labels(reason=reason))
    yield refused
    if access.tokens is not None:
        held = Family(
            f"{program}_tokens", "gauge", "Tokens in the token file that have not expired"
        )
        held.add(access.tokens.in_force(access.now()))
        yield held
