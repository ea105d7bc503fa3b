"""Delivery of messages: when they come, and what pauses, deletions and standstills change."""
