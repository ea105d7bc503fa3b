"""Tests of the simulated web site, its visitors and its robots."""
