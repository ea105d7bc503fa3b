"""The memory of a machine or container, and the default heap."""

from pathlib import Path

import pytest

from sparq.pipeline.jvm import default_heap, machine_bytes

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path):
    """A machine of 64 GiB, and a function that writes its files."""

    def write(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return tmp_path

    write("proc/meminfo", f"MemTotal:       {64 * GIB // 1024} kB\nMemFree:  1 kB\n")
    return write


@pytest.mark.parametrize(
    ("gib", "heap"),
    [(0.5, "1024m"), (4, "1024m"), (8, "2048m"), (23.5, "5888m"), (32, "8192m"), (512, "8192m")],
)
def test_the_heap_is_a_quarter(gib: float, heap: str) -> None:
    """Between 1 and 8 GiB, in steps of 256 MiB."""
    assert heap == default_heap(int(gib * GIB))


def test_a_machine(root) -> None:
    """Without limits it has the memory that the kernel reports."""
    assert 64 * GIB == machine_bytes(root("proc/self/cgroup", "0::/\n"))


def test_a_container_of_version_2(root) -> None:
    """The smallest limit of its group and the groups above; `max` means no limit."""
    root("proc/self/cgroup", "0::/pods/one\n")
    root("sys/fs/cgroup/pods/one/memory.max", "max\n")
    top = root("sys/fs/cgroup/pods/memory.max", f"{3 * GIB}\n")

    assert 3 * GIB == machine_bytes(top)


def test_a_container_that_sees_its_group_as_the_root(root) -> None:
    """The path of its group does not exist; the limit is at the root."""
    root("proc/self/cgroup", "0::/somewhere/else\n")

    assert 2 * GIB == machine_bytes(root("sys/fs/cgroup/memory.max", f"{2 * GIB}\n"))


def test_a_container_of_version_1(root) -> None:
    """Only the memory controller counts; a huge number means no limit."""
    root("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    root("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
    root("sys/fs/cgroup/cpu,cpuacct/a/memory.limit_in_bytes", "1\n")

    assert 5 * GIB == machine_bytes(
        root("sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{5 * GIB}\n")
    )


def test_this_machine() -> None:
    """It has some memory."""
    assert machine_bytes() > 100 << 20


def test_a_system_without_these_files(tmp_path: Path) -> None:
    """The C library knows its memory."""
    assert machine_bytes(tmp_path) > 100 << 20
