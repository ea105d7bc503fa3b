"""Benchmarks of sparq's speed and memory: `make bench`. Results are in docs/performance.md."""
