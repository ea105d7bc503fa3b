"""A local Spark session for the benches, with two tasks."""

from pathlib import Path
from typing import Any

from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python


def session(folder: Path) -> Any:
    """A local Spark session with two tasks."""
    ensure_java()
    use_this_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
