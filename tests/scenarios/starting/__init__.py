"""Flags, configuration files, and starts that fail."""
