"""Tests that cross modules, by subject. A test of one module is in the folder of its package."""
