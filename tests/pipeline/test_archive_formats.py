"""The archive's formats: each needs only its own packages, and a folder has one of them."""

import importlib
import sys

import pytest

from sparq.demo.generator import generate
from sparq.pipeline import archive, archive_formats
from sparq.pipeline.compaction import Sizes
from sparq.pipeline.folders import Folders
from sparq.pipeline.settings import SettingsError


@pytest.mark.parametrize("chosen", ["parquet", "delta"])
def test_readers_detect_the_format(spark, query, messages, tmp_path, chosen):
    """Readers detect the format; a sink of the other format refuses the folder."""
    folders = Folders(tmp_path)
    root = str(folders.archive)
    clicks = archive.archived(messages(generate(100, seed=3).lines))
    assert archive_formats.frame(spark, root).count() == len(archive_formats.read(folders)) == 0
    archive_formats.sink(spark, chosen, root, Sizes())(clicks, 0)
    frame, table = archive_formats.frame(spark, root), archive_formats.read(folders)

    expected = sorted(row.id for row in clicks.select("id").collect())
    assert expected == sorted(row.id for row in frame.select("id").collect())
    assert expected == sorted(table["id"].to_pylist())
    assert [*archive.ARCHIVE_COLUMNS, "date", "hour"] == frame.columns
    assert archive.READ_SCHEMA == table.schema
    assert (chosen == "delta") == archive_formats.is_delta(spark, root)
    [other] = {"parquet", "delta"} - {chosen}
    with pytest.raises(SettingsError, match=rf"{root} holds a .*: use --archive-format={chosen}"):
        archive_formats.sink(spark, other, root, None)


def test_how_long_replaced_files_are_kept(spark, tmp_path):
    """A Delta table keeps replaced files for a day; other sizes are those given."""
    sink = archive_formats.sink(spark, "delta", str(tmp_path), Sizes(1, 2, 3))

    assert sink._sizes == Sizes(1, 2, 3, keep_s=86_400)
    assert archive_formats.sink(spark, "delta", str(tmp_path), None)._sizes is None


def test_without_the_package(monkeypatch):
    """Delta without its package raises SettingsError with the pip command; Parquet needs none."""
    name = "sparq.pipeline.delta_place"
    kept = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    archive_formats.check_packages("parquet")

    sentence = r"--archive-format=delta: a Delta table needs .*: pip install 'sparq-mq\[delta\]'"
    with pytest.raises(SettingsError, match=sentence):
        archive_formats.check_packages("delta")
    monkeypatch.setitem(sys.modules, name, kept)
