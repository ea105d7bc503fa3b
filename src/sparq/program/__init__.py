"""What every sparq program needs at its start: flags, log lines and version."""
