"""The blocking face of the client: `sparq.connect`, for programs without an event loop.

`session` makes a `producer` or a `consumer`, each a `member` of it, that waits; asyncio's do the
work, on the session's `loop_thread`. What is to be published goes there while there is `room`.
Messages come from there many at a time, through a `feed`; the answers to them, and to a `batch`, go
back by a `crossing`.

A `connection` here knows no loop at all: Spark's tasks and its driver ask by it.
"""
