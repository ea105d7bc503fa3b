"""Proofs: programs that try to break sparq's promises and count the violations. See kill.py."""
