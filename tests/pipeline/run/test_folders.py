"""The data folder: what a run may delete."""

import pytest

from sparq.pipeline.run.folders import Folders, RunError, write_json


def test_a_folder_that_no_run_created_is_not_deleted(tmp_path):
    """A folder `clicks` that no run created is not deleted."""
    (tmp_path / "clicks").mkdir()

    with pytest.raises(RunError, match="clicks, which no run created"):
        Folders(tmp_path).clear()

    assert (tmp_path / "clicks").is_dir()


def test_a_run_deletes_only_output_of_earlier_runs(tmp_path):
    """A run deletes the output of earlier runs, and keeps a user's file beside it."""
    folders = Folders(tmp_path)
    write_json(folders.run / "state.json", {})
    (folders.minutes / "_delta_log").mkdir(parents=True)
    (tmp_path / "mine.txt").write_text("mine")

    assert sorted(folders.clear()) == ["minutes", "run"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_two_runs_do_not_share_a_folder(tmp_path):
    """While a run holds a folder, a second run is refused."""
    with Folders(tmp_path).lock(), pytest.raises(RunError, match="another run"):
        Folders(tmp_path).lock()

    Folders(tmp_path).lock().close()


def test_a_run_refuses_a_folder_with_clicks_of_sparq_up(tmp_path):
    """A run refuses a folder with the clicks of `sparq up`."""
    folders = Folders(tmp_path)
    write_json(tmp_path / "run" / "state.json", {"mode": "up"})
    folders.clicks.mkdir()

    with pytest.raises(RunError, match="sparq up"):
        folders.clear()

    assert folders.clicks.is_dir()
