"""Tests of the Spark data source `nsq`; those that need a Spark session share one (conftest)."""
