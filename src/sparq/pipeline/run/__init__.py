"""`sparq run` and `sparq up`: a cluster, clicks, the Spark application, and the audit."""
