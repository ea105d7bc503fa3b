"""Access control of nsqadmin."""
