"""What every program of sparq begins with: its flags, its log lines, its version."""
