"""Publishing: what is stored, how often, and what the publisher is told."""
