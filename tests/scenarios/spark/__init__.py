"""Spark reads topics and writes to them: real sessions and nsqds, and what goes wrong with them."""
