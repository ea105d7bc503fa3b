"""nsqadmin's pages in a real browser."""
