"""Tests of the cost of a message, and of the benchmarks."""
