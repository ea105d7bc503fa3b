"""Makes the data source `nsq` known to Spark, which looks for packages named `pyspark_*`."""

from sparq.spark.data_source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
