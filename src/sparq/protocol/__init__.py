"""NSQ's wire protocol as bytes and values, for both ends of a connection.

Nothing in this package opens a socket, reads a clock or starts a thread: bytes and times are
arguments, commands and frames are results. Every other package of sparq may import this one;
this one imports none of them.
"""
