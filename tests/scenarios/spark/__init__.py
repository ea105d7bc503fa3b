"""Spark reads topics and writes to them: real sessions, real nsqds, and what goes wrong with them."""
