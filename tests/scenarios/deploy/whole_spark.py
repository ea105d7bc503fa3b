"""`make wheel`: downloads and installs sparq-mq[spark] with pip, and runs its pipeline.

It is not part of the test suite: the first run takes a minute or more and 1 GB of disk, and the
pipeline takes time, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.deploy import wheel
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, Missing

RUN_SECONDS_MAX = 600


@pytest.mark.timeout(3 * INSTALL_SECONDS_MAX + RUN_SECONDS_MAX)
def test_the_pipeline_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    """The wheel's pipeline stores every click exactly once, as its audit finds."""
    try:
        programs = wheel.install(built, "spark")
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    words = ("run", "--count=2000", "--seed=1", "--data=data")
    # Spark starts Java with shell scripts, which need the shell's tools.
    env = {"PATH": os.environ["PATH"]}
    ran = wheel.run(programs / "sparq", *words, folder=tmp_path, env=env, seconds=RUN_SECONDS_MAX)

    assert 0 == ran.returncode, ran.stderr[-4000:]
    assert "audit passed: every acknowledged click is stored exactly once" in ran.stdout
