"""The wheel with its extras, each in an environment that has nothing else, is used for real.

`spark` is large: here its packages are links to those already installed. `make wheel` downloads
them with pip, and runs the pipeline (whole_spark.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.deploy import wheel
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


def test_the_extra_spark_suffices_for_the_pipeline(built: Path, tmp_path: Path) -> None:
    """`sparq run` reports that its input file is missing, and pyspark_nsq can be imported."""
    programs = wheel.install_with_links(built, "spark", tmp_path / "spark")
    ran = wheel.run(programs / "sparq", "run", "--clicks=none.gz", folder=tmp_path)
    source = wheel.run(programs / "python", "-c", "import pyspark_nsq", folder=tmp_path)

    assert (1, True) == (ran.returncode, "--clicks none.gz: no such file" in ran.stderr), ran
    assert (0, "") == (source.returncode, source.stderr)
