"""What is said: NSQ's wire protocol as bytes and values, for both ends of a connection.

Nothing in this room opens a socket, reads a clock or starts a thread: bytes and times are
arguments, commands and frames are results. Every other room of sparq may import this one;
this one imports none of them.
"""
