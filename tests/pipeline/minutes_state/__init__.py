"""Tests of the state of the query `metrics`; `twin.py` is the plain version to compare with."""
