"""Controls: nsqd, or a client of it, with one safeguard switched off. A proof must fail with it."""
