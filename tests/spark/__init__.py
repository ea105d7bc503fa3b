"""Tests of the data source `nsq`; those that need a session share one (conftest)."""
