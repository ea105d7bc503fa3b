"""The Spark session of tests/spark serves these tests too: there is one a process."""

from tests.spark.conftest import spark

__all__ = ["spark"]
