"""Proofs: real daemons, killed while they work, and a count of what was lost. See kill.py."""
