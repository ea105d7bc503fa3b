"""What Spark's workers are spared."""

import gc

from sparq.spark import worker


def test_only_a_worker_of_spark_is_settled(monkeypatch):
    """In a task what is loaded leaves the garbage collector's reach, once; elsewhere nothing."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    worker.settle.cache_clear()
    worker.settle()
    assert not frozen

    worker.settle.cache_clear()
    monkeypatch.setattr(worker.TaskContext, "get", object)
    worker.settle()
    worker.settle()
    worker.settle.cache_clear()

    assert [True] == frozen
