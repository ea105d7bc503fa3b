"""Tests of logs, metrics and the dashboard."""
