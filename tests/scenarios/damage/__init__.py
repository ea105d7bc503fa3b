"""Damaged files: what is lost, what is reported, and what still works."""
