"""Messages of a topic over all its nodes: looking, searching, replay, dead letters."""
