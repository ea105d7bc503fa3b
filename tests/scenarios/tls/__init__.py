"""Tests of TLS, compression and AUTH between clients and daemons."""
