"""The data source `nsq` for PySpark: reads topics' logs (source) and publishes rows (sink).

`import sparq.spark` loads neither PySpark nor Arrow: `sparq.spark.java` must run before them. Spark
finds the data source through the package `pyspark_nsq`, which is installed together with sparq:
`spark.readStream.format("nsq")` works without registering anything. The docstring of
`sparq.spark.data_source.NsqDataSource` documents the columns and options.

Modules: `options` (parses the user's options) · `offsets` (positions in the logs) · `discovery`
(finds nsqds) · `fleet` (the driver's connections) · `decode` (stored batches to Arrow) ·
`source` · `sink`.
"""
