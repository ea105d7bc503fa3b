"""Register the data source `nsq` with Spark, which loads packages named `pyspark_*`."""

from sparq.spark.data_source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
