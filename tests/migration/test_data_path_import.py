"""The import on a memory disk: it fails, loses power or is killed at every disk operation."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.log.disk import DiskError
from sparq.migration.check import check
from sparq.migration.data_path_import import DataPathImport, GoImportError
from sparq.migration.topic_import import ImportStopped
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.support.go_data import GoQueue, write_metadata

PATH = "/data"
Depths = dict[tuple[str, str], tuple[int, bool]]
EXPECTED: Depths = {
    ("clicks", ""): (0, False),
    ("clicks", "archive"): (55, False),
    ("clicks", "metrics"): (17, True),
    ("held", ""): (9, True),
    ("held", "c"): (0, False),
}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small data path of Go's nsqd."""
    folder = tmp_path_factory.mktemp("go")
    GoQueue(folder, "clicks:archive", 900).put(*[b"a%d" % n for n in range(60)]).take(12).close()
    GoQueue(folder, "clicks:metrics").put(*[b"m%d" % n for n in range(10)], attempts=3).close()
    GoQueue(folder, "clicks").put(*[b"o%d" % n for n in range(7)]).close()
    GoQueue(folder, "held").put(*[b"h%d" % n for n in range(9)]).close()
    topics = {"clicks": {"archive": False, "metrics": True}, "held": {"c": False}}
    write_metadata(folder, topics, paused="held")
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def disk_with(content: dict[str, bytes], *, capacity_bytes: int | None = None) -> MemoryDisk:
    """Return a memory disk with these files in the data path, synced."""
    disk = MemoryDisk(capacity_bytes=capacity_bytes)
    disk.make_directory(PATH)
    disk.sync_directory("/")
    for name, data in content.items():
        file = disk.create(f"{PATH}/{name}")
        file.append([data], 0)
        file.sync()
        file.close()
    disk.sync_directory("")
    disk.sync_directory(PATH)
    return disk


def run_import(disk: MemoryDisk, is_stopping: Callable[[], bool] = lambda: False) -> None:
    clock = ManualClock()
    data_path_import = DataPathImport(
        disk, PATH, node_id=7, max_bytes_per_file=100_000, clock=clock.now
    )
    data_path_import.run(is_stopping)


def depths(disk: MemoryDisk) -> Depths:
    found = check(disk, PATH, ManualClock().now(), lambda _size: None)
    assert found is not None
    assert "sparq" == found.kind
    assert [] == found.all_damage()
    return {(row.topic, row.channel): (row.depth, row.paused) for row in found.rows}


def originals(disk: MemoryDisk) -> dict[str, bytes]:
    """Return the original files that the import has kept."""
    kept = [path for path in disk.paths() if "/go-nsqd-" in path and "import.json" not in path]
    return {path.rpartition("/")[2]: bytes(disk.data(path)) for path in kept}


def operations(content: dict[str, bytes]) -> int:
    """Return the number of disk operations of a complete import."""
    disk = disk_with(content)
    before = disk.count
    run_import(disk)
    return disk.count - before


def test_a_second_import_changes_nothing(content: dict[str, bytes]) -> None:
    """A second import changes nothing."""
    disk = disk_with(content)
    run_import(disk)
    paths = disk.paths()
    run_import(disk)

    assert paths == disk.paths()
    assert EXPECTED == depths(disk)
    assert content == originals(disk)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3], ids=lambda s: "killed" if s is None else "")
def test_an_import_stopped_at_any_operation_can_be_repeated(
    content: dict[str, bytes], seed: int | None
) -> None:
    """After a kill or power cut at any operation, the next import has the same result."""
    for at in range(1, operations(content) + 1):
        disk = disk_with(content)
        disk.fail(Fault(at, None))
        with pytest.raises(PowerCut):
            run_import(disk)
        after = disk.killed() if seed is None else disk.crash(seed=1_000 * seed + at)
        run_import(after)

        assert EXPECTED == depths(after), at
        assert content == originals(after), at


def test_an_import_survives_an_error_of_any_operation(content: dict[str, bytes]) -> None:
    """After EIO at any operation, the import succeeds, or raises and the next one succeeds."""
    for at in range(1, operations(content) + 1):
        disk = disk_with(content)
        disk.fail(Fault(at, errno.EIO))
        try:
            run_import(disk)
        except (GoImportError, DiskError):
            disk.fault = None
            run_import(disk)
        disk.fault = None

        assert EXPECTED == depths(disk), at
        assert content == originals(disk), at


def test_an_import_on_a_full_disk_keeps_the_originals(content: dict[str, bytes]) -> None:
    """On a full disk the import raises "no space", deletes its files and keeps the originals."""
    size = sum(map(len, content.values()))
    for room in (100, size // 2, size + 1_000, size + 4_000):
        disk = disk_with(content, capacity_bytes=size + room)
        before = {name: bytes(disk.data(f"{PATH}/{name}")) for name in content}
        with pytest.raises((GoImportError, DiskError), match="no space"):
            run_import(disk)

        assert before == {name: bytes(disk.data(f"{PATH}/{name}")) for name in content}
        assert [] == [path for path in disk.paths() if "go-import" in path]
        disk.capacity_bytes = None
        run_import(disk)
        assert EXPECTED == depths(disk)


def test_a_full_disk_is_reported_if_its_free_space_is_unknown(
    content: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the disk is full, also if it cannot be asked for its free space."""

    def build(_import: DataPathImport, *_arguments: object) -> None:
        monkeypatch.setattr(MemoryDisk, "free_bytes", free_bytes)
        raise DiskError("write", f"{PATH}/file", errno.ENOSPC)

    def free_bytes(_disk: MemoryDisk, path: str) -> int:
        raise DiskError("look at", path, errno.EIO)

    monkeypatch.setattr(DataPathImport, "_build", build)
    disk = disk_with(content)
    with pytest.raises(GoImportError, match="no space"):
        run_import(disk)


def test_an_import_that_is_stopped_keeps_the_originals(content: dict[str, bytes]) -> None:
    """A stop between two batches deletes the unfinished import and keeps the originals."""
    disk = disk_with(content)
    with pytest.raises(ImportStopped):
        run_import(disk, lambda: True)

    assert set(content) <= {path.rpartition("/")[2] for path in disk.paths()}
    assert [] == [path for path in disk.paths() if "go-import" in path]
    run_import(disk)
    assert EXPECTED == depths(disk)
