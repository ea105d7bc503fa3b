"""The blocking API of the client: `sparq.connect`, for programs without an event loop.

A `session` makes blocking `producer` and `consumer` objects (each a `member`). The asyncio classes
do the work, on the session's `loop_thread`. Publishes pass to that thread within a byte limit (the
`Room` in `crossing`). Messages come from it many at a time, through a `feed`; responses to messages
and batches go back through a `crossing`.

A `connection` here uses no event loop at all: it serves Spark's tasks and its driver.
"""
