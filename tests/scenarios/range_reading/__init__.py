"""Tests of range readers, such as Spark's source, and the log that they read."""
