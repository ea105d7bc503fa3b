"""Who may do what in nsqadmin, and the log of who did what."""
