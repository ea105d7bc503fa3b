"""Tests of reading clicks; `written` writes the same requests in each named format."""
