"""The data folder: what a run may delete."""

import pytest

from sparq.options.mistakes import Mistake
from sparq.pipeline import folders
from sparq.pipeline.folders import write_json


def test_a_run_deletes_only_output_of_earlier_runs(tmp_path):
    """A run deletes the output of earlier runs, and keeps a user's file beside it."""
    write_json(tmp_path / "run" / "state.json", {})
    (tmp_path / "minutes" / "_delta_log").mkdir(parents=True)
    (tmp_path / "mine.txt").write_text("mine")

    assert ["minutes", "run"] == folders.clear(tmp_path)
    assert ["mine.txt"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("mode", ["", "up"])
def test_clicks_of_others_are_not_deleted(mode, tmp_path):
    """A run refuses a folder `clicks` that no run created, and one of `sparq up`."""
    (tmp_path / "clicks").mkdir()
    if mode:
        write_json(tmp_path / "run" / "state.json", {"mode": mode})

    assert mode == folders.mode(tmp_path)
    with pytest.raises(Mistake, match="sparq up" if mode else "clicks, which no run created"):
        folders.clear(tmp_path)
    assert (tmp_path / "clicks").is_dir()


def test_two_runs_do_not_share_a_folder(tmp_path):
    """While a run holds a folder, a second run is refused."""
    with folders.lock(tmp_path), pytest.raises(Mistake, match="another pipeline"):
        folders.lock(tmp_path)

    folders.lock(tmp_path).close()
