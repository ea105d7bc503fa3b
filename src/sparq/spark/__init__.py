"""The data source `nsq` for PySpark: reads topics' logs (source) and publishes rows (sink).

Spark finds it through the package `pyspark_nsq`, which is installed together with sparq:
`spark.readStream.format("nsq")` works without registering anything. The docstring of
`sparq.spark.data_source.NsqDataSource` documents the columns and options.

A message's way through the source: `data_source` (options, columns) · `source` (the readers that
Spark calls) · `batches` (where a batch begins and ends) · `connections` (nsqds, found and asked) ·
`ranges` (read and decoded in the executors). The sink is `sink`.
"""
