"""Small files through the JVM's file systems: created once, listed, read, deleted."""

import pytest

from sparq.pipeline.hadoop_files import FileStatus, HadoopFiles


@pytest.fixture
def files(spark):
    """Access to files with the session's configuration."""
    return HadoopFiles(spark)


def test_a_file_is_created_once(files, tmp_path):
    """A file is created with its folder; a second `create` is refused and changes nothing."""
    path = tmp_path / "log" / "00001"
    files.create(str(path), b"first \xff")

    with pytest.raises(FileExistsError, match="00001"):
        files.create(str(path), b"second")
    assert b"first \xff" == path.read_bytes() == files.read(str(path))


def test_reading_a_missing_file_raises_file_not_found(files, tmp_path):
    """Reading a missing file raises FileNotFoundError; deleting it is not an error."""
    with pytest.raises(FileNotFoundError, match="nothing"):
        files.read(str(tmp_path / "nothing"))
    files.delete(str(tmp_path / "nothing"))
    files.delete_tree(str(tmp_path / "nothing"))


def test_a_listing_has_only_the_folders_own_files(files, tmp_path):
    """A listing has the folder's own files, with escaped names, and no subfolders."""
    (tmp_path / "a file.txt").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").touch()
    (found,) = files.list(str(tmp_path))

    assert ("a%20file.txt", 5) == (found.name, found.size)
    assert found.directory.endswith(tmp_path.name)
    assert abs((tmp_path / "a file.txt").stat().st_mtime * 1000 - found.modified_ms) < 2000
    assert files.path_of(found.uri).endswith(f"{tmp_path.name}/a file.txt")
    assert [] == files.list(str(tmp_path / "nothing"))


def test_matches_of_a_pattern_are_sorted(files, tmp_path):
    """A pattern's matches are sorted by name."""
    for name in ("b-2", "b-1", "c-1"):
        (tmp_path / name).touch()

    found = files.glob(f"{tmp_path}/b-*")
    assert ["b-1", "b-2"] == [one.rpartition("/")[2] for one in found]
    assert [] == files.glob(f"{tmp_path}/none-*")


def test_files_and_folders_are_deleted(files, tmp_path):
    """`delete` removes one file, `delete_tree` a folder with its content."""
    path = tmp_path / "folder" / "file"
    files.create(str(path), b"x")
    files.create(str(tmp_path / "folder" / "deep" / "other"), b"x")
    files.delete(str(path))
    assert not path.exists()

    files.delete_tree(str(tmp_path / "folder"))
    assert [] == list(tmp_path.iterdir())


def test_an_address_has_a_name_and_a_directory():
    """An address has a name and a directory."""
    status = FileStatus("s3a://bucket/date=2026-11-21/a%20b.parquet", 1, 2)

    assert ("a%20b.parquet", "s3a://bucket/date=2026-11-21") == (status.name, status.directory)
