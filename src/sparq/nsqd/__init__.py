"""nsqd: the asyncio code around the broker (options, TCP, disk threads, HTTP, lookup, program)."""
