"""sparq: NSQ in Python, grown where NSQ stops."""
