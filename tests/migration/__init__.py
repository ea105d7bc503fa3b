"""Tests of the import of a data path of Go's nsqd."""
