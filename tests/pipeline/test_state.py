"""What a query remembers between its micro-batches."""

import pyarrow as pa
import pytest

from sparq.pipeline.state import StateError, StateStore


def numbers(*values):
    return {"numbers": pa.table({"n": pa.array(values, pa.int64())})}


def loaded(store, batch_id):
    tables, books = store.load(batch_id)
    return (tables["numbers"]["n"].to_pylist() if tables else []), books


def test_a_batch_finds_what_the_batches_before_it_left(tmp_path):
    """Rows add up, the books are those of the last batch."""
    store = StateStore(tmp_path)
    assert loaded(store, 0) == ([], {})

    store.save(0, numbers(1), {"at": 0})
    store.save(1, numbers(2, 3), {"at": 1})

    assert loaded(StateStore(tmp_path), 2) == ([1, 2, 3], {"at": 1})


def test_a_repeated_batch_does_not_see_its_first_attempt(tmp_path):
    """Spark repeats a batch that it could not commit: what that left is replaced."""
    store = StateStore(tmp_path)
    store.save(0, numbers(1), {"at": 0})
    store.save(1, numbers(99), {"at": "first attempt"})

    assert loaded(store, 1) == ([1], {"at": 0})

    store.save(1, numbers(2), {"at": 1})

    assert loaded(store, 2) == ([1, 2], {"at": 1})


def test_a_snapshot_stands_for_all_before_it(tmp_path):
    """The batch before the newest can be repeated all the same; older files go."""
    store = StateStore(tmp_path, snapshot_every=3)
    for batch in range(9):
        whole = store.wants_snapshot(batch)
        assert whole == (batch in (2, 5, 8))
        store.save(batch, numbers(*range(batch + 1)) if whole else numbers(batch), {"at": batch})

    assert loaded(store, 9) == (list(range(9)), {"at": 8})
    assert loaded(store, 8) == (list(range(8)), {"at": 7})
    assert not (tmp_path / "batch-00000003").exists()


def test_a_gap_is_an_error_that_names_it(tmp_path):
    """A checkpoint that is further than the state would count clicks as never seen."""
    store = StateStore(tmp_path)
    store.save(0, numbers(1), {})

    with pytest.raises(StateError, match=r"begins with batch 3.*lacks batch-00000001"):
        store.load(3)


def test_a_write_that_was_cut_off_is_not_looked_at(tmp_path):
    """A folder has its name only once it is whole."""
    store = StateStore(tmp_path)
    store.save(0, numbers(1), {})
    (tmp_path / ".batch-00000001.77").mkdir()

    assert loaded(store, 1) == ([1], {})
