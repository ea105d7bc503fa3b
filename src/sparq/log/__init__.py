"""Storage: a topic's messages and the state of its channels, on a disk that may fail.

Pure except for `disk`, the only module that opens files: no sockets, no asyncio, no threads and no
clock. Operations that may wait for the disk are tasks that the caller runs elsewhere (see `task`).
"""
