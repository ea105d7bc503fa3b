"""Tests of flags, configuration files, and starts that fail."""
