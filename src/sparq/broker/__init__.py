"""What is decided: topics, channels, sessions, and who gets which message when.

Pure: no socket, no asyncio, no thread and no clock; time is an argument (`Instant`), the disk is
reached through `sparq.log` only, and whatever may take long is handed out as a task.
"""
