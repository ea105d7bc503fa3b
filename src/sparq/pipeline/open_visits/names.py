"""Who the visitors are: address and agent of each hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparq.pipeline.open_visits.rows import NAMES, Ints, Marks, joined


@dataclass(frozen=True, slots=True)
class Name:
    """One visitor, and whether the agent says that it is a robot."""

    address: str
    agent: str
    declared: bool


class Names:
    """Visitors by hash; `table` has each once, in order of the hashes, columns of NAMES."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        table = joined(NAMES, [_plain(table) for table in tables])
        visitor, first = np.unique(table["visitor"].to_numpy(), return_index=True)
        self._visitor: Ints = visitor
        self.table = table.take(pa.array(first)).combine_chunks()
        self._declared: Marks = self.table["declared"].to_numpy()

    def of(self, visitor: int) -> Name:
        """The name of a visitor, who must be known."""
        at = int(np.searchsorted(self._visitor, visitor))
        assert self._visitor[at] == visitor, visitor
        return Name(*(self.table[name][at].as_py() for name in NAMES.names[1:]))

    def declared(self, visitors: Ints) -> Marks:
        """Which of these visitors, all known, declare to be robots."""
        if not len(visitors):
            return np.empty(0, bool)
        return self._declared[np.searchsorted(self._visitor, visitors)]

    def only(self, visitors: Ints) -> pa.Table:
        """The names of these visitors; agents as a dictionary, since few make up all."""
        table = self.table.filter(pa.array(np.isin(self._visitor, visitors)))
        at = NAMES.get_field_index("agent")
        return table.set_column(at, "agent", table["agent"].dictionary_encode())


def _plain(table: pa.Table) -> pa.Table:
    """With agents as texts."""
    return table if table.schema.equals(NAMES) else table.cast(NAMES)
