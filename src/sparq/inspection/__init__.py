"""Looking into a topic: what a browser and a command-line tool show of its messages.

Nothing here changes a message, and no channel waits for it. What it reads of the disk is read by
works of its own kind (`TaskKind.INSPECT`), a part at a time.
"""
