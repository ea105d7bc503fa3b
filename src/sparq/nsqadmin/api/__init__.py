"""NSQ's own JSON API, as its nsqadmin has it (reference: nsqadmin.md)."""
