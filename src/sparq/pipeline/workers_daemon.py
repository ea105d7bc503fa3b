"""The parent of Spark's Python workers, with their modules loaded (`spark.python.daemon.module`).

Spark forks the Python workers of a machine from one daemon. Spark's own has loaded hardly any
modules, so each of some fifteen workers takes half a second of CPU or more to load them.

Nothing here writes to standard output: Spark reads the daemon's port from it.
"""

import gc
import os

# Before numpy is loaded: workers are forked from this process, which must not have threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# polars starts its threads when it is loaded, so only the workers load it. Each of them is a task.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import pandas as pd  # noqa: F401 - for the workers; numpy may start no threads
import pyarrow.compute  # noqa: F401 - for the workers
import pyspark.worker  # noqa: F401 - for the workers
from pyspark import daemon

from sparq.pipeline import archive, metrics  # noqa: F401 - for the workers

if __name__ == "__main__":
    gc.freeze()  # a collection would write to shared pages, and so copy them in each worker
    daemon.manager()
