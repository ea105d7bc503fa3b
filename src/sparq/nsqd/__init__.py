"""nsqd: asyncio shells around the broker (options, TCP, commits, HTTP, nsqlookupd, the program)."""
