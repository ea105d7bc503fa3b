"""The wheel with its extras, each in an environment that has nothing else, is used for real.

`spark` is large: here its packages are links to those already installed. `make wheel` downloads
them with pip, and runs the pipeline (whole_spark.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.deploy import pins, wheel
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, Missing

PROGRAM = Path(__file__).with_name("traced.py")

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


@pytest.fixture(scope="module")
def traced(built: Path) -> Path:
    """The folder of the programs of `sparq-mq[otel]`."""
    try:
        return wheel.install(built, "otel")
    except Missing as missing:
        pytest.skip(f"needs {missing}")


def run_traced_program(programs: Path, folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run the program with spans and the nsqd installed there; returns its JSON."""
    with wheel.nsqd(programs, folder) as nsqd:
        ran = wheel.run(programs / "python", PROGRAM, nsqd.tcp, folder=folder, env=env)
    assert 0 == ran.returncode, ran.stderr
    return dict(json.loads(ran.stdout))


def test_otel_with_an_sdk_records_the_spans(built: Path, traced: Path, tmp_path: Path) -> None:
    """With an SDK, a publish and the handling of its message are spans of one trace."""
    sdk = pins.with_dependencies(pins.applicable(["opentelemetry-sdk"], {""})) - pins.needed(
        built, "otel"
    )
    pins.link_packages(sdk, tmp_path / "sdk")

    found = run_traced_program(traced, tmp_path, {"PYTHONPATH": str(tmp_path / "sdk")})
    kinds = {name: kind for name, kind, _ in found["spans"]}

    assert ["one"] == found["handled"]
    assert {"process traced": "CONSUMER", "publish traced": "PRODUCER"}.items() <= kinds.items()
    # The third one is the response to the message.
    assert 3 == len(found["spans"])
    assert 1 == len({trace for _, _, trace in found["spans"]})


def test_the_extra_spark_suffices_for_the_pipeline(built: Path, tmp_path: Path) -> None:
    """`sparq run` reports that its input file is missing, and pyspark_nsq can be imported."""
    programs = wheel.install_with_links(built, "spark", tmp_path / "spark")
    ran = wheel.run(programs / "sparq", "run", "--clicks=none.gz", folder=tmp_path)
    source = wheel.run(programs / "python", "-c", "import pyspark_nsq", folder=tmp_path)

    assert (1, True) == (ran.returncode, "--clicks none.gz: no such file" in ran.stderr), ran
    assert (0, "") == (source.returncode, source.stderr)
