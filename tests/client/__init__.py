"""Tests of sparq.client."""
