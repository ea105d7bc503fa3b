"""The parent process of Spark's Python workers, which imports their modules once."""

import json
import subprocess
import sys

from sparq.pipeline.session import DEFAULTS

NAME = DEFAULTS["spark.python.daemon.module"]
PROGRAM = """
import json, sys
import {module}
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
OF_WORKERS = {
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "sparq.pipeline.archive",
    "sparq.pipeline.metrics",
}


def test_the_daemon_imports_the_workers_modules():
    """It imports the workers' modules; stdout stays empty: Spark reads the port from there."""
    program = PROGRAM.format(module=NAME)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert b"" == done.stdout
    loaded = set(json.loads(done.stderr))
    assert OF_WORKERS <= loaded
    assert "polars" not in loaded  # it has threads, which a fork does not keep
