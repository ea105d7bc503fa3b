"""What a message costs."""
