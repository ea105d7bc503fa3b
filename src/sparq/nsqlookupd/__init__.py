"""nsqlookupd: a registry that consumers ask which nsqds have a topic."""
