"""What a Python worker of Spark does once, before its first task of ours."""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def settle() -> None:
    """Takes what is loaded by now out of the reach of garbage collections.

    Spark's worker collects garbage after each task. With Spark's, Arrow's and numpy's modules loaded
    this takes some 60 ms, a third of the time of a task of a million rows and most of the time of a
    small one, and never finds anything in them.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
