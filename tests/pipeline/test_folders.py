"""The data folder: who may clear what, and how a batch's file gets there."""

import pyarrow as pa
import pytest

from sparq.pipeline.folders import FolderError, Folders, read_batches, write_batch, write_json

SCHEMA = pa.schema([("n", pa.int64())])


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


def test_a_repeated_batch_replaces_its_rows(tmp_path):
    """Also by none: what the first attempt wrote must not stay."""
    write_batch(tmp_path, 1, "rows", rows(1, 2))
    write_batch(tmp_path, 2, "rows", rows(3))
    write_batch(tmp_path, 1, "rows", rows(4))

    assert sorted(read_batches(tmp_path, SCHEMA)["n"].to_pylist()) == [3, 4]

    write_batch(tmp_path, 2, "rows", rows())

    assert read_batches(tmp_path, SCHEMA)["n"].to_pylist() == [4]


def test_half_a_file_is_not_read(tmp_path):
    """A writer that was killed leaves a name that readers pass over."""
    write_batch(tmp_path, 1, "rows", rows(1))
    (tmp_path / "batch=1" / "_rows.99").write_bytes(b"PAR1 and then nothing")

    assert read_batches(tmp_path, SCHEMA)["n"].to_pylist() == [1]


def test_what_no_run_has_made_is_not_cleared(tmp_path):
    """A folder `archive` may be anybody's."""
    (tmp_path / "archive").mkdir()

    with pytest.raises(FolderError, match="archive, but not from a run"):
        Folders(tmp_path).clear()

    assert (tmp_path / "archive").is_dir()


def test_a_run_clears_what_a_run_left_and_nothing_else(tmp_path):
    """A user's own file beside it stays."""
    folders = Folders(tmp_path)
    write_json(folders.run / "state.json", {})
    write_batch(folders.metrics, 0, "minutes", rows(1))
    (tmp_path / "mine.txt").write_text("mine")

    assert sorted(folders.clear()) == ["metrics", "run"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_two_runs_do_not_share_a_folder(tmp_path):
    """The second is refused while the first holds it."""
    with Folders(tmp_path).hold(), pytest.raises(FolderError, match="another run"):
        Folders(tmp_path).hold()

    Folders(tmp_path).hold().close()


def test_the_clicks_of_up_are_never_cleared(tmp_path):
    """A run refuses a folder in which a user's own clicks lie."""
    folders = Folders(tmp_path)
    write_json(tmp_path / "run" / "state.json", {"mode": "up"})
    folders.archive.mkdir()

    with pytest.raises(FolderError, match="sparq up"):
        folders.clear()

    assert folders.archive.is_dir()
