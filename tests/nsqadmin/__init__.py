"""Tests of nsqadmin."""
