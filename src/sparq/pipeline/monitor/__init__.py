"""Metrics of the streaming queries, from the progress that Spark reports for each batch."""
