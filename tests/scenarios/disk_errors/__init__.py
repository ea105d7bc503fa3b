"""Disks that fail."""
