"""A disk without space, in a running nsqd."""
