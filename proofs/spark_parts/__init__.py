"""Parts of the proof on a Spark cluster: see `proofs.spark_cluster`."""
