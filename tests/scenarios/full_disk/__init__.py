"""A disk without free space: publishes are refused, finishes are recorded."""
