"""The broker core: topics, channels, sessions, and which client gets which message when.

No socket, asyncio, thread or clock is used here. Time is an argument (`Instant`), the disk is
reached only through `sparq.log`, and work that may take long is returned as a task.
"""
