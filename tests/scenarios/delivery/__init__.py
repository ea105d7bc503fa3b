"""Delivery of messages: when they arrive, and the effects of pauses, deletions and suspensions."""
