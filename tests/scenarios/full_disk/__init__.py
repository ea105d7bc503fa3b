"""A disk without free space: what is refused, kept and freed."""
