"""One V2 connection without its socket, for both ends: bytes in, bytes out.

`server` is nsqd's end, `client` the end of all who connect to it; between them and a socket lie the
same `layers`. The shells around them move bytes and keep time: `sparq.nsqd.tcp`, and on the
client's side a `connection` for asyncio and one that blocks.
"""
