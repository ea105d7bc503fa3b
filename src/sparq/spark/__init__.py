"""Spark's way into the log: the data source `nsq`, a source and a sink for PySpark.

`import sparq.spark` loads neither PySpark nor Arrow: `sparq.spark.java` must run before them. Spark
finds the data source by itself through the package `pyspark_nsq`, which is installed beside sparq:
`spark.readStream.format("nsq")` needs no line of code. What it offers stands in the docstring of
`sparq.spark.data_source.NsqDataSource`.

Rooms: `options` (what the user asks) · `offsets` (places in the logs) · `discovery` (which nsqds) ·
`fleet` (the driver's connections) · `decode` (stored batches to Arrow) · `source` · `sink`.
"""
