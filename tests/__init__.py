"""Tests: one folder per package of sparq; `support` holds the shared helpers."""
