"""Floods of connections, commands and data."""
