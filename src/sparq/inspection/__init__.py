"""Inspection of a topic: its messages, as a browser and a command-line tool show them.

Nothing here changes a message, and no channel waits for it. Reads from the disk are tasks of their
own kind (`TaskKind.INSPECT`), one part at a time.
"""
