"""The blocking API of the client: `sparq.connect`, for programs without an event loop.

A `session` makes blocking `producer` and `consumer` objects (each a `handle`). The asyncio classes
do the work, on the session's `loop_thread`. Publishes pass to that thread within a byte limit, and
messages come from it many at a time.

A `connection` here uses no event loop at all: it serves Spark's tasks and its driver.
"""
