"""How imported messages are cut into commits."""

import numpy as np
import pytest

from sparq.log.go_records import FIXED_SIZE, GoRecords
from sparq.nsqd.go_import import BATCH_BYTES, BATCH_COUNT, batches
from tests.support.go_data import record


def piece(*sizes: int) -> GoRecords:
    """Messages with bodies of these sizes."""
    data = b"".join(record(b"x" * size, number) for number, size in enumerate(sizes))
    lengths = np.array(sizes, np.int64) + FIXED_SIZE
    starts = np.cumsum(lengths + 4) - lengths
    return GoRecords(data, starts, lengths)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([[5]], [1]),
        ([[5] * (BATCH_COUNT + 3)], [BATCH_COUNT, 3]),
        ([[5], [6], [7]], [3]),
        ([[5] * 3000, [6] * 3000], [3000, 3000]),
        ([[BATCH_BYTES * 2]], [1]),
        ([[5, BATCH_BYTES * 2, 5, 5]], [1, 1, 2]),
        ([[BATCH_BYTES // 2 - FIXED_SIZE] * 5], [2, 2, 1]),
    ],
)
def test_runs_of_the_size_of_a_commit(pieces: list[list[int]], expected: list[int]) -> None:
    """Nothing is left out or moved; a message larger than a commit is alone."""
    runs = list(batches(piece(*sizes) for sizes in pieces))

    assert expected == [sum(map(len, run)) for run in runs]
    sizes = [body.nbytes for run in runs for part in run for body in part.bodies()]
    assert [size for sizes in pieces for size in sizes] == sizes
