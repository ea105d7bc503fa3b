"""Messages of a topic over all its nodes: viewing, search, replay, dead letters."""
