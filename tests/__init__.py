"""Tests: a folder per room of the package; shared helpers beside them."""
