"""Tools and nsqadmin while some nsqds or nsqlookupds are dead: what they do and report."""
