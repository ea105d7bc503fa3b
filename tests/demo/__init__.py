"""The simulated web site, its visitors and its planted robots."""
