"""Tokens and auth servers: what a client may do, and until when."""
