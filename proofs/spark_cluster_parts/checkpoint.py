"""How far queries are, by Spark's checkpoints: what is planned, what is done, what is forgotten.

checkpoint/<query>/offsets/12    batch 12 is planned: what it shall read is written down
checkpoint/<query>/commits/12    batch 12 is done
"""

from __future__ import annotations

from pathlib import Path

QUERIES = ("archive", "metrics", "spam_analysis")


def newest(folder: Path) -> int:
    """The newest batch that has a file in a folder; -1 if none has."""
    return max(
        (int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=-1
    )


class Checkpoints:
    """The checkpoints of all queries.

    Args:
        root: the folder that holds a checkpoint for each query.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def planned(self, query: str) -> int:
        """The newest batch that is written down; -1 before the first."""
        return newest(self._root / query / "offsets")

    def done(self, query: str) -> int:
        """The newest batch that is done; -1 before the first."""
        return newest(self._root / query / "commits")

    def batches_done(self) -> int:
        """Of all queries."""
        return sum(self.done(query) + 1 for query in QUERIES)

    def least_done(self) -> int:
        """How many batches the query has done that has done the fewest."""
        return 1 + min(map(self.done, QUERIES))

    def under_way(self) -> list[tuple[str, int]]:
        """(query, batch) of what is planned and not done."""
        # What was planned at the first look and is not done at the second is under way.
        found = [(query, self.planned(query), self.done(query)) for query in QUERIES]
        return [(query, planned) for query, planned, done in found if planned > done]

    def settled(self) -> list[str]:
        """The queries of which every planned batch is done, and at least one."""
        return [query for query in QUERIES if -1 < self.planned(query) == self.done(query)]

    def forget(self, query: str) -> int:
        """Delete the last file of `commits`; the batch, which Spark will run again."""
        batch = self.done(query)
        folder = self._root / query / "commits"
        for path in (folder / str(batch), folder / f".{batch}.crc"):
            path.unlink(missing_ok=True)
        return batch

    def is_done(self, query: str, batch: int) -> bool:
        """Whether a batch is among the newest that are done."""
        return (self._root / query / "commits" / str(batch)).exists()
