"""The CI script: the environment it passes to `make`, its exit status and its last line."""

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAKE = """#!/bin/sh
env | grep ^PYTHON
echo "3 passed, 1 skipped in 0.10s"
exit {status}
"""


def run_with(
    folder: Path, status: int, program: str = MAKE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script with a fake `make` that prints its environment."""
    (folder / ".ci").mkdir()
    script = folder / ".ci" / "run"
    script.write_bytes((ROOT / ".ci" / "run").read_bytes())
    make = folder / "make"
    make.write_text(program.format(status=status), encoding="utf-8")
    make.chmod(0o755)
    return subprocess.run(
        ["/bin/bash", str(script)],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **variables},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )


def test_python_environment_variables_are_removed(tmp_path: Path) -> None:
    """The script removes PYTHON* variables such as PYTHONUNBUFFERED, but keeps PYTHON itself."""
    ran = run_with(tmp_path, 0, PYTHONUNBUFFERED="1", PYTHONUTF8="1", PYTHON="python3.12")

    assert ["PYTHON=python3.12"] == [line for line in ran.stdout.splitlines() if "PYTHON" in line]
    assert (0, "3 passed, 1 skipped in 0.10s") == (ran.returncode, ran.stdout.splitlines()[-1])


def test_the_exit_status_of_make_is_kept(tmp_path: Path) -> None:
    """The script keeps make's exit status; a failure without a count is reported as 1 failed."""
    ran = run_with(tmp_path, 2)

    assert (2, "0 passed, 1 failed, 0 skipped") == (ran.returncode, ran.stdout.splitlines()[-1])


def test_the_script_does_not_wait_for_leftover_processes(tmp_path: Path) -> None:
    """The script does not wait for a leftover process that still has the output open."""
    leaves = "#!/bin/sh\nsleep 60 &\necho 3 passed in 0.10s\n"

    began = time.monotonic()
    ran = run_with(tmp_path, 0, leaves)

    assert (0, "3 passed in 0.10s") == (ran.returncode, ran.stdout.splitlines()[-1])
    assert time.monotonic() - began < 30
