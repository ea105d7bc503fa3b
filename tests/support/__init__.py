"""Helpers that tests of several packages share, and proofs may use."""
