"""Small files through the JVM's file systems: listed, read, deleted."""

import pytest

from sparq.pipeline.hadoop_files import HadoopFiles


@pytest.fixture
def files(spark):
    """Access to files with the session's configuration."""
    return HadoopFiles(spark)


def test_files_are_listed_and_read(files, tmp_path):
    """A listing has the names of the folder's own files; a missing folder has none."""
    (tmp_path / "a file.txt").write_bytes(b"first \xff")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").touch()

    assert ["a file.txt"] == files.list(str(tmp_path))
    assert [] == files.list(str(tmp_path / "nothing"))
    assert b"first \xff" == files.read(str(tmp_path / "a file.txt"))
    with pytest.raises(FileNotFoundError, match="nothing"):
        files.read(str(tmp_path / "nothing"))


def test_matches_of_a_pattern_are_sorted(files, tmp_path):
    """A pattern's matches are sorted by name."""
    for name in ("b-2", "b-1", "c-1"):
        (tmp_path / name).touch()

    found = files.glob(f"{tmp_path}/b-*")
    assert ["b-1", "b-2"] == [one.rpartition("/")[2] for one in found]
    assert [] == files.glob(f"{tmp_path}/none-*")
