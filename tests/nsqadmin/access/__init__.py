"""Who may do what in nsqadmin."""
