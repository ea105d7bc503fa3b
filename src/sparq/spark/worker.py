"""What a Python worker of Spark does once, before its first task of ours."""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def settle() -> None:
    """Takes what is loaded by now out of the reach of garbage collections.

    Spark's worker collects garbage after each task. With the modules of Spark, Arrow and numpy
    loaded this took some 60 ms: a third of the time of a task of 500,000 rows, and most of that of
    a small one.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
