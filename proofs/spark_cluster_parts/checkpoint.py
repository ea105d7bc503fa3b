"""Progress of the queries, read from Spark's checkpoints: planned and completed batches.

checkpoint/<query>/offsets/12    batch 12 is planned: what it reads is written down
checkpoint/<query>/commits/12    batch 12 is done
"""

from __future__ import annotations

from pathlib import Path

QUERIES = ("archive", "metrics", "spam_analysis")


def newest(folder: Path) -> int:
    """Return the newest batch that has a file in a folder; -1 if none has."""
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
        """Return the newest planned batch; -1 before the first."""
        return newest(self._root / query / "offsets")

    def done(self, query: str) -> int:
        """Return the newest completed batch; -1 before the first."""
        return newest(self._root / query / "commits")

    def batches_done(self) -> int:
        """Return the number of completed batches, over all queries."""
        return sum(self.done(query) + 1 for query in QUERIES)

    def least_done(self) -> int:
        """Return the number of completed batches of the query that has the fewest."""
        return 1 + min(map(self.done, QUERIES))

    def under_way(self) -> list[tuple[str, int]]:
        """Return (query, batch) of the batches that are planned and not done."""
        # `planned` is read before `done`: a batch that is not done by then is in progress.
        found = [(query, self.planned(query), self.done(query)) for query in QUERIES]
        return [(query, planned) for query, planned, done in found if planned > done]

    def settled(self) -> list[str]:
        """Return the queries with at least one planned batch and none in progress."""
        return [query for query in QUERIES if -1 < self.planned(query) == self.done(query)]

    def forget(self, query: str) -> int:
        """Delete the last file of `commits`; return its batch, which Spark will run again."""
        batch = self.done(query)
        folder = self._root / query / "commits"
        for path in (folder / str(batch), folder / f".{batch}.crc"):
            path.unlink(missing_ok=True)
        return batch

    def is_done(self, query: str, batch: int) -> bool:
        """Return whether a batch is among the newest completed ones."""
        return (self._root / query / "commits" / str(batch)).exists()
