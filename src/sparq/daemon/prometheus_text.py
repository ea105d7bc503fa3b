"""A writer for Prometheus' text exposition format, for thousands of series.

`prometheus_client` provides the figures of the process itself; its objects for each topic and
channel would cost many times as much as these lines.

1. A family is written once, with its HELP and TYPE lines first and then all its samples.
2. Label values are escaped; the caller is responsible for valid names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**pairs: str) -> str:
    """Format labels as they follow a metric's name."""
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs.items())
    return f"{{{inner}}}"


class Family:
    """One metric and its samples."""

    def __init__(
        self, name: str, kind: str, text: str, samples: Mapping[str, float] | None = None
    ) -> None:
        """Begin a metric.

        Args:
            name: its name.
            kind: counter, gauge or histogram.
            text: the help, without line breaks.
            samples: its samples by their labels; "": none.
        """
        self.name = name
        self._lines = [f"# HELP {name} {text}\n# TYPE {name} {kind}\n"]
        for labelled, value in (samples or {}).items():
            self.add(value, labelled)

    def add(self, value: float, labelled: str = "") -> None:
        """Add a sample; `labelled` comes from `labels`."""
        shown = f"{value:d}" if isinstance(value, int) else repr(value)
        self._lines.append(f"{self.name}{labelled} {shown}\n")

    def add_histogram(self, bounds: Iterable[float], counts: Iterable[int], total: float) -> None:
        """Add a histogram's buckets, with their upper bounds.

        `counts` are not cumulative and have one more element, for observations above all bounds.
        `total` is the sum of all observations.
        """
        below = 0
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            below += count
            shown = "+Inf" if bound == float("inf") else repr(bound)
            self._lines.append(f'{self.name}_bucket{{le="{shown}"}} {below}\n')
        self._lines.append(f"{self.name}_sum {total!r}\n{self.name}_count {below}\n")

    def text(self) -> str:
        """Return the family's text; empty if it has no sample."""
        return "".join(self._lines) if len(self._lines) > 1 else ""


def process_registry() -> CollectorRegistry:
    """Make a registry for the figures of this process: CPU, memory, files, Python, collector."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it untyped
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def access_families(access: Access | None, program: str) -> Iterator[Family]:
    """Yield the number of refusals by reason, and of tokens that have not expired.

    Nothing if there are no access checks.
    """
    if access is None or not access.needs_token:
        return
    yield Family(
        f"{program}_refused_requests_total",
        "counter",
        "Requests and commands refused, by reason",
        {labels(reason=reason): count for reason, count in access.refused.items()},
    )
    if access.tokens is not None:
        yield Family(
            f"{program}_tokens",
            "gauge",
            "Tokens in the token file that have not expired",
            {"": access.tokens.in_force(access.now())},
        )
