"""Tests of the state of the query `spam_analysis`; `plain.py` is the version to compare with."""
