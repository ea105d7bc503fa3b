"""Tests of publishing: which messages are stored, how often, and the publisher's result."""
