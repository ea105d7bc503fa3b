"""Who may do what at a daemon: tokens of a file, roles, the log of who did what."""
