"""Starts, stops and kills of running daemons."""
