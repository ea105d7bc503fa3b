"""nsqadmin."""
