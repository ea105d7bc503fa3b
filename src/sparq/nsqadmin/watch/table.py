"""A list of channels or topics as columns, sorted by name; a row is made when it is shown.

10,000 rows as objects would take 10 ms and 5 MB at each round, and 50 of them are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparq.nsqadmin.watch.names import Key

RowT = TypeVar("RowT")
Column = NDArray[Any]


class Table(Generic[RowT]):
    """Rows of one kind.

    Args:
        make: makes a row of its key and its figures, of which an unknown one (nan) is None.

    Attributes:
        keys: topic and channel of each row, in order.
        columns: the figures by name, shape (len(keys),) each.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        columns: Mapping[str, Column],
        make: Callable[[Key, dict[str, Any]], RowT],
    ) -> None:
        self.keys = keys
        self.columns = columns
        self._make = make

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    def __iter__(self) -> Iterator[RowT]:
        """All rows, one after the other."""
        return map(self.row, range(len(self.keys)))

    def row(self, place: int) -> RowT:
        """The row at a place."""
        figures = {name: _plain(column[place]) for name, column in self.columns.items()}
        return self._make(self.keys[place], figures)

    def find(self, topic: str, channel: str = "") -> RowT | None:
        """The row of this name; None: there is none."""
        place = self._places.get((topic, channel))
        return None if place is None else self.row(place)

    @cached_property
    def _places(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def texts(self) -> list[str]:
        """What a filter searches in each row: `topic/channel` in small letters."""
        return [
            f"{topic}/{channel}".lower() if channel else topic.lower()
            for topic, channel in self.keys
        ]


def _plain(figure: Any) -> Any:
    """A figure as Python's own; None for an unknown one."""
    value = figure.item()
    return None if isinstance(value, float) and np.isnan(value) else value
