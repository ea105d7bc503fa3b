"""The V2 protocol of a connection without a socket, for both ends: bytes in, bytes out.

`server` is nsqd's end and `client` the client's end; both use the same `layers` (TLS, compression).
Sockets and timers are elsewhere: in `sparq.nsqd.tcp`, and on the client's side in a `connection`
for asyncio and a blocking one.
"""
