"""Tokens and authds: what a client may do, and for how long."""
