"""What survives a stop, a crash or a power cut."""
