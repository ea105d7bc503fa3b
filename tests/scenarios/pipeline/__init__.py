"""Tests of the clicks pipeline from the outside: commands, report, metrics and error messages."""
