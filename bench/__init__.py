"""Speed and memory of sparq, measured: `make bench`. Figures go to docs/performance.md."""
