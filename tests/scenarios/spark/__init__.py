"""Tests of Spark's source and sink with real sessions and real nsqds, and of their failures."""
