"""What is kept: a topic's messages and its channels' memory, on a disk that may fail.

Pure but for `disk`, the only module that opens files: no socket, no asyncio, no thread and no
clock. What may wait for the disk is work to be run elsewhere (see `task`).
"""
