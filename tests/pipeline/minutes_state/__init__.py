"""Tests of the state of the query `metrics`, which are compared with plain Python (`twin.py`)."""
